package modelgatetest

import (
	"encoding/base64"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	defaultLimit = 50
	maxLimit     = 100
)

// place is where a row stands in a list: by time, then by id.
type place struct {
	at time.Time
	id string
}

func (p place) after(other place) bool {
	return p.at.After(other.at) || p.at.Equal(other.at) && p.id > other.id
}

// cursor is a place as clients carry it.
func (p place) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.at.UnixMilli(), 10) + "|" + p.id))
}

func parseCursor(text string) (p place, ok bool) {
	plain, err := base64.RawURLEncoding.DecodeString(text)
	ms, id, found := strings.Cut(string(plain), "|")
	at, msErr := strconv.ParseInt(ms, 10, 64)
	return place{time.UnixMilli(at).UTC(), id}, err == nil && found && msErr == nil && id != ""
}

// query is the parameters of a call, each of them known and there once.
type query struct {
	values url.Values
	limit  int
	from   place // the rows that follow it; the zero place: from the beginning
}

// query reads a list's parameters.
func (c *call) query(filters ...string) (q query, err error) {
	if q, err = c.parameters(append(filters, "limit", "cursor")...); err != nil {
		return q, err
	}
	q.limit = defaultLimit
	if text := q.values.Get("limit"); q.values.Has("limit") {
		if q.limit, err = strconv.Atoi(text); err != nil || q.limit < 1 || q.limit > maxLimit {
			return q, invalidf("limit", "limit: want 1 to %d", maxLimit)
		}
	}
	if text := q.values.Get("cursor"); q.values.Has("cursor") {
		from, isCursor := parseCursor(text)
		if !isCursor {
			return q, invalidf("cursor", "cursor: want next_cursor of the page before")
		}
		q.from = from
	}
	return q, nil
}

// noQuery is for calls without parameters.
func (c *call) noQuery() error {
	_, err := c.parameters()
	return err
}

func (c *call) parameters(known ...string) (query, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return query{}, invalidf("", "what follows the ? is no query")
	}
	for name, texts := range values {
		if !slices.Contains(known, name) {
			return query{}, invalidf(name, "%s: there is no such parameter", name)
		}
		if len(texts) > 1 {
			return query{}, invalidf(name, "%s: it is there twice", name)
		}
	}
	return query{values: values}, nil
}

// is reports whether a filter lets a value through.
func (q query) is(filter, value string) bool {
	return !q.values.Has(filter) || q.values.Get(filter) == value
}

// between reads two filters that are times; the zero time: none.
func (q query) between(fromName, toName string) (from, to time.Time, err error) {
	for name, at := range map[string]*time.Time{fromName: &from, toName: &to} {
		if !q.values.Has(name) {
			continue
		}
		if *at, err = time.Parse(time.RFC3339, q.values.Get(name)); err != nil || !strings.HasSuffix(q.values.Get(name), "Z") {
			return from, to, invalidf(name, "%s: want a time like 2026-11-30T15:04:05Z", name)
		}
	}
	return from, to, nil
}

// within reports whether a time is one of from <= at < to.
func within(at, from, to time.Time) bool {
	return !at.Before(from) && (to.IsZero() || at.Before(to))
}

// hasRef is the filter external_ref, which not every upstream has.
func (s *session) hasRef(q query, ref string) bool {
	return s.options.NoRefFilter || q.is("external_ref", ref)
}

// page is a part of a list.
type page[T any] struct {
	rows []T
	next *string
}

// paginate takes the page that a query asks for out of rows that are in order.
func paginate[T any](q query, rows iter.Seq[T], placeOf func(T) place, wanted func(T) bool) (p page[T]) {
	for row := range rows {
		if !wanted(row) || !placeOf(row).after(q.from) {
			continue
		}
		if len(p.rows) == q.limit {
			cursor := placeOf(p.rows[q.limit-1]).cursor()
			p.next = &cursor
			break
		}
		p.rows = append(p.rows, row)
	}
	return p
}

// list is a page on the wire.
type list struct {
	Data       []any   `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

func (p page[T]) reply(view func(T) any) (reply, error) {
	answer := list{Data: []any{}, NextCursor: p.next}
	for _, row := range p.rows {
		answer.Data = append(answer.Data, view(row))
	}
	return jsonReply(http.StatusOK, answer), nil
}
