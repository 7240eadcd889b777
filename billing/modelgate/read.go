package modelgate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"jpintel/billing/strictjson"
)

const (
	pageRows = 100
	// maxRows is the most rows that answer one question: whoever has more
	// matches than that has another problem.
	maxRows = 1000
	// CodeTooMany is what is wrong with an answer of more rows than that.
	CodeTooMany = "too_many_rows"
	// maxOthers is the most rows that do not, from an upstream whose lists have no
	// filter for references: a person has to look where there are more customers.
	maxOthers = 10_000
)

// Found is the whole answer to one question. What is evidence has to say what
// was asked and what came.
type Found[T any] struct {
	Items  []T
	Query  string // path and query of the first page
	Status int
	SHA256 string    // of all pages, in hex
	Date   time.Time // by the upstream's clock; zero: it has not said
}

// ReadError is a question that was not answered.
type ReadError struct {
	Class  Class
	Code   string
	Status int // 0: no answer
}

func (e *ReadError) Error() string { return fmt.Sprintf("asking the upstream: %s", e.Code) }

// GroupsByRef finds the groups with a reference.
func (c *Client) GroupsByRef(ctx context.Context, externalRef string) (Found[Group], error) {
	return list(ctx, c, "/groups", url.Values{"external_ref": {externalRef}}, readGroup, func(g Group) string { return g.ID },
		func(g Group) bool { return g.ExternalRef == externalRef })
}

// Group reads one group; none where there is none.
func (c *Client) Group(ctx context.Context, id string) (Found[Group], error) {
	return one(ctx, c, "/groups/"+url.PathEscape(id), readGroup)
}

// KeysByRef finds the keys of a group with a reference.
func (c *Client) KeysByRef(ctx context.Context, group, externalRef string) (Found[Key], error) {
	return list(ctx, c, "/groups/"+url.PathEscape(group)+"/keys", url.Values{"external_ref": {externalRef}}, readKey, func(k Key) string { return k.ID },
		func(k Key) bool { return k.ExternalRef == externalRef })
}

// Key reads one key; none where there is none.
func (c *Client) Key(ctx context.Context, id string) (Found[Key], error) {
	return one(ctx, c, "/keys/"+url.PathEscape(id), readKey)
}

// Limits reads a group's limits.
func (c *Client) Limits(ctx context.Context, group string) (Found[Limits], error) {
	return one(ctx, c, "/groups/"+url.PathEscape(group)+"/limits", readLimits)
}

// TransactionsByRef finds the transactions of a group with a reference.
func (c *Client) TransactionsByRef(ctx context.Context, group, externalRef string) (Found[Transaction], error) {
	return list(ctx, c, "/transactions", url.Values{"group_id": {group}, "external_ref": {externalRef}}, readTransaction, func(t Transaction) string { return t.ID },
		func(t Transaction) bool { return t.ExternalRef == externalRef })
}

// TransactionQuery says which transactions are wanted. What is empty does not count.
type TransactionQuery struct {
	GroupID  string
	From, To time.Time // From <= created_at < To; whole seconds
}

// Transactions finds transactions.
func (c *Client) Transactions(ctx context.Context, q TransactionQuery) (Found[Transaction], error) {
	query := url.Values{}
	if q.GroupID != "" {
		query.Set("group_id", q.GroupID)
	}
	if !q.From.IsZero() {
		query.Set("created_from", q.From.UTC().Format(time.RFC3339))
		query.Set("created_to", q.To.UTC().Format(time.RFC3339))
	}
	return list(ctx, c, "/transactions", query, readTransaction, func(t Transaction) string { return t.ID }, everything)
}

// Wallet reads what the partner's wallet has.
func (c *Client) Wallet(ctx context.Context) (Found[Balance], error) {
	return one(ctx, c, "/balance", readBalance)
}

// AuditQuery says which audit events are wanted. What is empty does not count.
type AuditQuery struct {
	RequestID string
	Action    string
	TargetID  string
	From, To  time.Time
}

// Audit finds audit events.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (Found[AuditEvent], error) {
	query := url.Values{}
	for name, value := range map[string]string{"request_id": q.RequestID, "action": q.Action, "target_id": q.TargetID} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if !q.From.IsZero() {
		query.Set("from", q.From.UTC().Format(time.RFC3339))
		query.Set("to", q.To.UTC().Format(time.RFC3339))
	}
	return list(ctx, c, "/audit-events", query, readAudit, func(e AuditEvent) string { return e.ID }, everything)
}

func everything[T any](T) bool { return true }

func only[T any](all []T, keep func(T) bool) (kept []T) {
	for _, v := range all {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// one reads one object.
func one[T any](ctx context.Context, c *Client, path string, read func(*reader) T) (Found[T], error) {
	got, found, err := ask[T](ctx, c, path)
	if e, ok := err.(*ReadError); ok && e.Status == http.StatusNotFound && strings.HasSuffix(e.Code, "_not_found") {
		return found, nil // the upstream's own word, not that of something in between
	}
	if err != nil {
		return found, err
	}
	r := &reader{object: got}
	v := read(r)
	if r.err != nil {
		return found, &ReadError{Malformed, CodeMalformed, found.Status}
	}
	found.Items = []T{v}
	return found, nil
}

// list reads all pages of a list and keeps what is wanted, each object once.
func list[T any](ctx context.Context, c *Client, path string, query url.Values, read func(*reader) T, id func(T) string, wanted func(T) bool) (Found[T], error) {
	return listUpTo(ctx, c, maxRows, path, query, read, id, wanted)
}

// listUpTo is list with a bound of its own, in rows that are wanted.
func listUpTo[T any](ctx context.Context, c *Client, most int, path string, query url.Values, read func(*reader) T, id func(T) string, wanted func(T) bool) (all Found[T], err error) {
	query.Set("limit", strconv.Itoa(pageRows))
	sum, seen, cursors := sha256.New(), map[string]bool{}, map[string]bool{}
	for rows, others := 0, 0; ; {
		page, next, err := listPage(ctx, c, path, query, read)
		if all.Query == "" {
			all.Query = page.Query
		}
		all.Status, all.Date = page.Status, page.Date
		sum.Write([]byte(page.SHA256))
		all.SHA256 = hex.EncodeToString(sum.Sum(nil))
		if err != nil {
			return all, err
		}
		for _, v := range page.Items {
			if !wanted(v) {
				others++
				continue
			}
			if rows++; !seen[id(v)] {
				seen[id(v)] = true
				all.Items = append(all.Items, v)
			}
		}
		if rows > most || others > maxOthers {
			return all, &ReadError{Malformed, CodeTooMany, page.Status}
		}
		if next == "" {
			return all, nil
		}
		if cursors[next] || len(cursors) > (most+others)/pageRows {
			return all, &ReadError{Malformed, codeCursorLoop, page.Status}
		}
		cursors[next] = true
		query.Set("cursor", next)
	}
}

// codeCursorLoop is a list that has no end.
const codeCursorLoop = "cursor_loop"

// listPage reads one page of a list; next is the cursor of the one after it, ""
// at the end.
func listPage[T any](ctx context.Context, c *Client, path string, query url.Values, read func(*reader) T) (page Found[T], next string, err error) {
	got, page, err := ask[T](ctx, c, path+"?"+query.Encode())
	if err != nil {
		return page, "", err
	}
	data, ok := got["data"].([]any)
	next, text := got["next_cursor"].(string)
	if !ok || !text && got["next_cursor"] != nil {
		return page, "", &ReadError{Malformed, CodeMalformed, page.Status}
	}
	for _, element := range data {
		o, _ := element.(object)
		r := &reader{object: o}
		v := read(r)
		if r.err != nil {
			return page, "", &ReadError{Malformed, CodeMalformed, page.Status}
		}
		page.Items = append(page.Items, v)
	}
	return page, next, nil
}

// ask makes one GET.
func ask[T any](ctx context.Context, c *Client, path string) (object, Found[T], error) {
	got := c.exchange(ctx, Request{Method: http.MethodGet, Path: path}, time.Now().Add(Timeout))
	found := Found[T]{Query: path, Status: got.status}
	if got.status == 0 {
		return nil, found, &ReadError{Unknown, failureCode(got.err), 0}
	}
	o := judge(Request{Method: http.MethodGet, Path: path}, got)
	found.SHA256, found.Date = o.SHA256, o.Date
	if got.status != http.StatusOK {
		return nil, found, &ReadError{o.Class, o.Code, got.status}
	}
	body, err := strictjson.Parse(got.body)
	if err != nil || got.err != nil {
		return nil, found, &ReadError{Malformed, CodeMalformed, got.status}
	}
	return body, found, nil
}
