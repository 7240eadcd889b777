package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"jpintel/store"
	"jpintel/webhook"
)

// maxBody is the most bytes that a JSON body may have.
const maxBody = 64 << 10

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
//	body:"raw"        the JSON body as it is
//	json:"url"        a member of the JSON body
//
// The answer is JSON with status 200, or what its HTTPStatus method says.
func endpoint[Req, Resp any](fn func(context.Context, Req) (Resp, error)) handler {
	return func(c *call) error {
		var req Req
		if err := c.bind(reflect.ValueOf(&req).Elem()); err != nil {
			return err
		}
		resp, err := fn(c.r.Context(), req)
		if err != nil {
			return err
		}
		status := http.StatusOK
		if s, ok := any(resp).(interface{ HTTPStatus() int }); ok {
			status = s.HTTPStatus()
		}
		return writeJSON(c.w, status, resp)
	}
}

func (c *call) bind(req reflect.Value) error {
	members := map[string]reflect.Value{}
	var raw reflect.Value
	if err := c.bindFields(req, members, &raw); err != nil {
		return err
	}
	if len(members) == 0 && !raw.IsValid() {
		return nil
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	if raw.IsValid() {
		raw.SetBytes(body)
		return nil
	}
	return decodeObject(body, members)
}

func (c *call) bindFields(req reflect.Value, members map[string]reflect.Value, raw *reflect.Value) error {
	for i := range req.NumField() {
		field, value := req.Type().Field(i), req.Field(i)
		tag := field.Tag
		switch {
		case field.Anonymous:
			if err := c.bindFields(value, members, raw); err != nil {
				return err
			}
		case tag.Get("bind") == "customer":
			value.SetString(c.customer)
		case tag.Get("path") != "":
			value.SetString(c.params.ByName(tag.Get("path")))
		case tag.Get("query") != "":
			if err := setQuery(value, tag.Get("query"), c.r.URL.Query().Get(tag.Get("query"))); err != nil {
				return err
			}
		case tag.Get("body") == "raw":
			*raw = value
		case tag.Get("json") != "-" && tag.Get("json") != "":
			name, _, _ := strings.Cut(tag.Get("json"), ",")
			members[name] = value
		}
	}
	return nil
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

// body reads a JSON body. A missing content type is taken for JSON.
func (c *call) body() ([]byte, error) {
	if err := wantContentType(c.r, "application/json"); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, store.Errorf(store.CodeTooLarge, "the body has more than %d bytes", maxBody)
	}
	if err != nil {
		return nil, store.Errorf(store.CodeInvalid, "the body ended early")
	}
	return body, nil
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
	malformed := func() error { return store.Errorf(store.CodeInvalid, "the body is not a JSON object") }
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return malformed()
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		var raw json.RawMessage
		if err != nil || !ok || dec.Decode(&raw) != nil {
			return malformed()
		}
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
	if _, err := dec.Token(); err != nil {
		return malformed()
	}
	if _, err := dec.Token(); err != io.EOF {
		return store.Errorf(store.CodeInvalid, "there is something after the JSON object")
	}
	return nil
}

func decodeMember(name string, raw json.RawMessage, member reflect.Value) error {
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
// once, and its text stays inside.
func writeError(c *call, log *slog.Logger, err error) {
	e, public := errors.AsType[*store.Error](err)
	if !public {
		if c.r.Context().Err() == nil {
			log.Error("request_failed", "request_id", store.RequestID(c.r.Context()), "method", c.r.Method, "path", logPath(c.r.URL.Path), "error", err)
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
		log.Warn("request_unavailable", "request_id", store.RequestID(c.r.Context()), "error", err)
	}
	if wait > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(max(wait.Seconds(), 1)))))
	}
	// The message may repeat what the caller sent, a key in the wrong place too.
	// A map of strings always encodes.
	_ = writeJSON(c.w, status, map[string]string{"detail": webhook.Mask(e.Message)})
}
