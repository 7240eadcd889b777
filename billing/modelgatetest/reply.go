package modelgatetest

import (
	"bytes"
	"encoding/json"
	"net/http"
)

// reply is an answer before it is sent. Its body is never changed, only
// replaced: it may be stored under a key too.
type reply struct {
	status int
	header http.Header
	body   []byte
	// foreign: it comes from something in front of the upstream, which knows no
	// request ids, dates or caches.
	foreign bool
	// replay is what a replay answers instead, where that is something else.
	replay *reply
}

// jsonReply answers with a value.
func jsonReply(status int, v any) reply {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // unreachable: the values are the package's own
	}
	return reply{status: status, header: http.Header{"Content-Type": {"application/json"}}, body: bytes.TrimSuffix(body.Bytes(), []byte("\n"))}
}

// ok answers 200.
func ok(v any) (reply, error) { return jsonReply(http.StatusOK, v), nil }

// created answers 201.
func created(v any) (reply, error) { return jsonReply(http.StatusCreated, v), nil }

// with adds a header to a copy.
func (r reply) with(name, value string) reply {
	r.header = r.header.Clone()
	r.header.Set(name, value)
	return r
}
