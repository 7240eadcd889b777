package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"jpintel/store"
	"jpintel/webhook"
)

// maxBody is the most bytes that a JSON body may have, unless its endpoint says
// otherwise.
const maxBody = 64 << 10

// maxAhead is how many bytes of a body have their place before they have come.
const maxAhead = 4 << 10

// call is one API call on its way to its endpoint.
type call struct {
	r        *http.Request
	w        http.ResponseWriter
	params   httprouter.Params
	customer string // authenticated; "" for the operator
}

// handler serves a call, or returns why it cannot be served.
type handler func(*call) error

// endpoint adapts a method to HTTP: the one place where requests are bound and
// answers are written. The request's fields say where they come from:
//
//	bind:"customer"   the authenticated customer
//	path:"id"         a parameter of the path
//	query:"limit"     a parameter of the query
//	header:"X-Name"   a header
//	body:"raw"        the JSON body as it is
//	json:"url"        a member of the JSON body
//
// A body may have maxBody bytes, or what the request's MaxBody method says. The
// answer is JSON with status 200, or what its HTTPStatus method says.
func endpoint[Req, Resp any](fn func(context.Context, Req) (Resp, error)) handler {
	return bound(func(c *call, req Req) error {
		resp, err := fn(c.r.Context(), req)
		if err != nil {
			return err
		}
		status := http.StatusOK
		if s, ok := any(resp).(interface{ HTTPStatus() int }); ok {
			status = s.HTTPStatus()
		}
		return writeJSON(c.w, status, resp)
	})
}

// bound is a handler that is given its request, and answers by itself.
func bound[Req any](fn func(*call, Req) error) handler {
	known := queryNames(reflect.TypeFor[Req]())
	return func(c *call) error {
		var req Req
		if err := c.bind(reflect.ValueOf(&req).Elem(), known); err != nil {
			return err
		}
		return fn(c, req)
	}
}

// bind fills a request; known are the query parameters that it has.
func (c *call) bind(req reflect.Value, known []string) error {
	query, err := c.query(known)
	if err != nil {
		return err
	}
	members := map[string]reflect.Value{}
	var raw reflect.Value
	if err := c.bindFields(req, query, members, &raw); err != nil {
		return err
	}
	if len(members) == 0 && !raw.IsValid() {
		return nil
	}
	limit := int64(maxBody)
	if r, ok := req.Interface().(interface{ MaxBody() int64 }); ok {
		limit = r.MaxBody()
	}
	body, err := c.body(limit)
	if err != nil {
		return err
	}
	if raw.IsValid() {
		raw.SetBytes(body)
		return nil
	}
	return decodeObject(body, members)
}

// queryNames are the query parameters that a request has.
func queryNames(req reflect.Type) (names []string) {
	for _, field := range reflect.VisibleFields(req) {
		if name := field.Tag.Get("query"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// query reads the query as strictly as a body: every parameter known, and there
// once.
func (c *call) query(known []string) (url.Values, error) {
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, store.Errorf(store.CodeInvalid, "what follows the ? is not a query")
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !slices.Contains(known, name):
			return nil, store.Errorf(store.CodeInvalid, "%s: unknown parameter", name)
		case len(query[name]) > 1:
			return nil, store.Errorf(store.CodeInvalid, "%s: there twice", name)
		}
	}
	return query, nil
}

func (c *call) bindFields(req reflect.Value, query url.Values, members map[string]reflect.Value, raw *reflect.Value) error {
	for i := range req.NumField() {
		field, value := req.Type().Field(i), req.Field(i)
		tag := field.Tag
		switch {
		case field.Anonymous:
			if err := c.bindFields(value, query, members, raw); err != nil {
				return err
			}
		case tag.Get("bind") == "customer":
			value.SetString(c.customer)
		case tag.Get("path") != "":
			value.SetString(c.params.ByName(tag.Get("path")))
		case tag.Get("query") != "":
			if err := setQuery(value, tag.Get("query"), query.Get(tag.Get("query"))); err != nil {
				return err
			}
		case tag.Get("header") != "":
			text, err := c.headerValue(tag.Get("header"))
			if err != nil {
				return err
			}
			value.SetString(text)
		case tag.Get("body") == "raw":
			*raw = value
		case memberName(tag) != "":
			members[memberName(tag)] = value
		}
	}
	return nil
}

// memberName is the member of a JSON body that a field is bound to; "": none.
func memberName(tag reflect.StructTag) string {
	name, _, _ := strings.Cut(tag.Get("json"), ",")
	return strings.TrimPrefix(name, "-")
}

// decodeRequest reads a body into a request, as an API call does.
func decodeRequest[Req any](body []byte, req *Req) error {
	members, value := map[string]reflect.Value{}, reflect.ValueOf(req).Elem()
	for i := range value.NumField() {
		if name := memberName(value.Type().Field(i).Tag); name != "" {
			members[name] = value.Field(i)
		}
	}
	return decodeObject(body, members)
}

// headerValue is the one value of a header; "" where it is not sent.
func (c *call) headerValue(name string) (string, error) {
	switch values := c.r.Header.Values(name); {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", store.Errorf(store.CodeInvalid, "%s: there twice", name)
	case values[0] == "":
		return "", store.Errorf(store.CodeInvalid, "%s: empty", name)
	default:
		return values[0], nil
	}
}

func setQuery(value reflect.Value, name, text string) error {
	if text == "" {
		return nil
	}
	if value.Kind() == reflect.String {
		value.SetString(text)
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return store.Errorf(store.CodeInvalid, "%s: want a positive number", name)
	}
	value.SetInt(int64(n))
	return nil
}

// body reads a JSON body of so many bytes at most. A missing content type is
// taken for JSON.
func (c *call) body(limit int64) ([]byte, error) {
	if err := wantContentType(c.r, "application/json"); err != nil {
		return nil, err
	}
	tooLarge := store.Errorf(store.CodeTooLarge, "the body has more than %d bytes", limit)
	if c.r.ContentLength > limit { // it is not waited for
		c.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	var b bytes.Buffer
	b.Grow(int(min(max(c.r.ContentLength, 0), maxAhead)) + bytes.MinRead)
	_, err := b.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, limit))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge
	}
	if err != nil {
		return nil, store.Errorf(store.CodeInvalid, "the body ended early")
	}
	return b.Bytes(), nil
}

func wantContentType(r *http.Request, want string) error {
	given := r.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(given)
	if given != "" && (err != nil || media != want) {
		return store.Errorf(store.CodeUnsupported, "Content-Type: want %s", want)
	}
	return nil
}

// decodeObject reads a JSON object strictly: every member known, exactly as it
// is written, and there once.
func decodeObject(body []byte, members map[string]reflect.Value) error {
	if err := wantObject(body); err != nil {
		return err
	}
	seen := map[string]bool{}
	for name, raw := range webhook.Members(body) {
		member, known := members[name]
		if !known {
			return store.Errorf(store.CodeInvalid, "%s: unknown field", name)
		}
		if seen[name] {
			return store.Errorf(store.CodeInvalid, "%s: there twice", name)
		}
		seen[name] = true
		if err := decodeMember(name, raw, member); err != nil {
			return err
		}
	}
	return nil
}

// wantObject checks that a body is one JSON object and nothing else.
func wantObject(body []byte) error {
	object := bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
	switch {
	case object && json.Valid(body):
		return nil
	case object && json.NewDecoder(bytes.NewReader(body)).Decode(&json.RawMessage{}) == nil:
		return store.Errorf(store.CodeInvalid, "there is something after the JSON object")
	}
	return store.Errorf(store.CodeInvalid, "the body is not a JSON object")
}

func decodeMember(name string, raw json.RawMessage, member reflect.Value) error {
	if as, ok := member.Addr().Interface().(*json.RawMessage); ok {
		*as = raw
		return nil
	}
	err := json.Unmarshal(raw, member.Addr().Interface())
	if err == nil || store.CodeOf(err) != "" {
		return err
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && e.Field != "" {
		return store.Errorf(store.CodeInvalid, "%s.%s: want %s", name, e.Field, kindWords(e.Type))
	}
	return store.Errorf(store.CodeInvalid, "%s: want %s", name, kindWords(member.Type()))
}

func kindWords(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64, reflect.Uint16:
		return "a whole number"
	case reflect.Slice:
		return "a list, each " + kindWords(t.Elem())
	case reflect.Pointer:
		return kindWords(t.Elem()) + " or null"
	}
	return "an object"
}

// writeJSON writes an answer: UTF-8 as itself, no HTML escaping.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	if status == http.StatusNoContent {
		w.WriteHeader(status)
		return nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client has gone: nobody is left to tell
	return nil
}

// statusOf is the one table from error codes to HTTP.
var statusOf = map[store.Code]int{
	store.CodeInvalid:      http.StatusBadRequest,
	store.CodeUnauthorized: http.StatusUnauthorized,
	store.CodeForbidden:    http.StatusForbidden,
	store.CodeNotFound:     http.StatusNotFound,
	store.CodeConflict:     http.StatusConflict,
	store.CodeGone:         http.StatusGone,
	store.CodeTooLarge:     http.StatusRequestEntityTooLarge,
	store.CodeUnsupported:  http.StatusUnsupportedMediaType,
	store.CodeRateLimited:  http.StatusTooManyRequests,
	store.CodeUnavailable:  http.StatusServiceUnavailable,
}

// writeError answers with {"detail":…}. What has no public code is logged here,
// once, and its text stays inside. It is masked all the same: nobody knows what
// an error or a panic carries.
func writeError(c *call, log *slog.Logger, err error) {
	e, public := errors.AsType[*store.Error](err)
	if !public {
		if c.r.Context().Err() == nil {
			log.Error("request_failed", "request_id", store.RequestID(c.r.Context()), "method", c.r.Method, "path", logPath(c.r.URL.Path), "error", webhook.Mask(err.Error()))
		}
		e = &store.Error{Message: "internal error"}
	}
	status, ok := statusOf[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	wait := e.RetryAfter
	if e.Code == store.CodeUnavailable {
		wait = time.Second
		log.Warn("request_unavailable", "request_id", store.RequestID(c.r.Context()), "error", webhook.Mask(err.Error()))
	}
	if wait > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(wait.Seconds(), 1)))))
	}
	// The message may repeat what the caller sent, a key in the wrong place too.
	// A map of strings always encodes.
	_ = writeJSON(c.w, status, map[string]string{"detail": webhook.Mask(e.Message)})
}
