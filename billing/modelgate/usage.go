package modelgate

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// usageTime is a time as it is asked for: to the millisecond, so that reading can
// go on in the middle of a busy second.
const usageTime = "2006-01-02T15:04:05.000Z"

// UsageReader reads what a group has used, page by page, in the order in which
// it was used.
type UsageReader struct {
	client   *Client
	group    string
	from, to time.Time
	query    url.Values
	seen     map[string]bool // ids
	cursors  map[string]bool
	last     time.Time
	over     bool
}

// Usage begins to read what a group has used from one instant to another,
// exclusive, to the millisecond. It makes no request yet.
func (c *Client) Usage(group string, from, to time.Time) *UsageReader {
	from, to = from.UTC().Truncate(time.Millisecond), to.UTC().Truncate(time.Millisecond)
	return &UsageReader{client: c, group: group, from: from, to: to, last: from, seen: map[string]bool{}, cursors: map[string]bool{},
		query: url.Values{"group_id": {group}, "from": {from.Format(usageTime)}, "to": {to.Format(usageTime)}, "limit": {strconv.Itoa(pageRows)}}}
}

// Over reports whether the last page has been read.
func (u *UsageReader) Over() bool { return u.over }

// Next reads the next page, each request once. A page with what was not asked
// for, of another group, another time or out of order, is an error: where to go
// on after it could not be known.
func (u *UsageReader) Next(ctx context.Context) (Found[Used], error) {
	page, next, err := listPage(ctx, u.client, "/requests", u.query, readUsed)
	if err != nil {
		return page, err
	}
	refuse := func(code string) (Found[Used], error) {
		page.Items = nil
		return page, &ReadError{Malformed, code, page.Status}
	}
	page.Items = only(page.Items, u.fresh)
	for _, v := range page.Items {
		switch {
		case v.groupID != "" && v.groupID != u.group:
			return refuse("other_group")
		case v.CreatedAt.Before(u.from) || !v.CreatedAt.Before(u.to):
			return refuse("other_time")
		case v.CreatedAt.Before(u.last):
			return refuse("not_in_order")
		}
		u.last = v.CreatedAt
	}
	if u.over = next == ""; u.over {
		return page, nil
	}
	if u.cursors[next] {
		return refuse(codeCursorLoop)
	}
	u.cursors[next] = true
	u.query.Set("cursor", next)
	return page, nil
}

// fresh reports whether a request comes for the first time.
func (u *UsageReader) fresh(v Used) bool {
	known := u.seen[v.ID]
	u.seen[v.ID] = true
	return !known
}
