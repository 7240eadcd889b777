package modelgatetest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// action is what a fault does.
type action struct {
	kind   *kind
	name   string
	wait   time.Duration
	bytes  int64
	text   string
	status statusWords
}

// kind is a sort of action: where it may be, how its words are read, and, for one
// that only changes an answer, how.
type kind struct {
	at    []At
	moves At   // where it takes place in truth; "": where it is said
	keyed bool // it is about the Idempotency-Key: there has to be one
	parse func(*action, string) error
	do    func(*call, *action) error
	shape func(*call, *outgoing, *action)
}

var (
	notMid  = slices.DeleteFunc(slices.Clone(stations), func(at At) bool { return at == AtMidResponse })
	leaving = []At{AtAfterCommit, AtMidResponse, AtOnResponse}
)

// kinds are all actions by their word.
var kinds = allKinds()

func allKinds() map[string]*kind {
	all := map[string]*kind{
		"delay": {at: stations, parse: parseWait, do: (*call).delay},
		"hang":  {at: stations, do: (*call).hang},
		"close": {at: stations, do: func(c *call, _ *action) error { return c.cut(false) }},
		"reset": {at: stations, do: func(c *call, _ *action) error { return c.cut(true) }},

		"status":          {at: notMid, parse: parseStatus, do: (*call).saysStatus},
		"redirect":        {at: notMid, parse: parseRedirect, do: (*call).redirects},
		"mismatch":        {at: notMid, keyed: true, do: (*call).saysReused},
		"in_progress_for": {at: notMid, keyed: true, parse: parseWait, do: (*call).saysRunning},

		"lose_idem_record": {at: notMid, keyed: true, do: (*call).loseRecord},
		"expire_idem":      {at: notMid, keyed: true, do: (*call).expireRecord},
		"stale_read":       {at: []At{AtBeforeExecute, AtOnResponse}, moves: AtBeforeExecute, parse: parseWait, do: (*call).readStale},
	}
	for name, k := range map[string]kind{
		"truncate":           {parse: parseBytes, shape: truncate},
		"slow_body":          {parse: parsePace, shape: slowBody},
		"huge_body":          {parse: parseHuge, shape: hugeBody},
		"malformed_json":     {shape: malformedJSON},
		"trailing_garbage":   {shape: trailingGarbage},
		"number_amount":      {shape: numberAmount},
		"sci_amount":         {shape: sciAmount},
		"echo_amount":        {parse: parseText, shape: echoAmount},
		"echo_currency":      {parse: parseText, shape: echoCurrency},
		"duplicate_key_case": {parse: parseDuplicate, shape: duplicateKey},
		"drop_request_id":    {shape: dropRequestID},
		"wrong_content_type": {shape: wrongContentType},
		"date_skew":          {parse: parseSkew, shape: dateSkew},
		"list_omit":          {parse: parseText, shape: listOmit},
		"list_dup":           {shape: listDup},
		"cursor_loop":        {shape: cursorLoop},
	} {
		k.at, k.moves = leaving, AtOnResponse
		all[name] = &k
	}
	return all
}

// parseAction reads the words of a rule.
func parseAction(do string) (action, error) {
	name, words, _ := strings.Cut(do, ":")
	a := action{name: name, kind: kinds[name]}
	if a.kind == nil {
		return a, fmt.Errorf("want one of %q", slices.Sorted(maps.Keys(kinds)))
	}
	if a.kind.parse == nil {
		if words != "" {
			return a, errors.New("nothing belongs after it")
		}
		return a, nil
	}
	return a, a.kind.parse(&a, words)
}

func parseWait(a *action, words string) (err error) {
	if a.wait, err = time.ParseDuration(words); err != nil || a.wait < 0 {
		return errors.New("want a duration, like 20s")
	}
	return nil
}

func parseSkew(a *action, words string) (err error) {
	if a.wait, err = time.ParseDuration(words); err != nil {
		return errors.New("want a duration with a sign, like +10m")
	}
	return nil
}

// defaultPace is between the bytes of a slow body.
const defaultPace = 100 * time.Millisecond

func parsePace(a *action, words string) error {
	if words == "" {
		a.wait = defaultPace
		return nil
	}
	return parseWait(a, words)
}

func parseBytes(a *action, words string) (err error) {
	if a.bytes, err = strconv.ParseInt(words, 10, 64); err != nil || a.bytes < 0 {
		return errors.New("want a number of bytes")
	}
	return nil
}

// defaultHuge is what no client should read.
const defaultHuge = 100 << 20

func parseHuge(a *action, words string) error {
	if words == "" {
		a.bytes = defaultHuge
		return nil
	}
	return parseBytes(a, words)
}

func parseText(a *action, words string) error {
	if a.text = words; words == "" {
		return errors.New("something belongs after the colon")
	}
	return nil
}

func parseDuplicate(a *action, words string) error {
	if a.text = words; words != "" && words != "exact" {
		return errors.New("want exact, or nothing, after it")
	}
	return nil
}

// parseRedirect reads "307" or "302 http://127.0.0.1:1/elsewhere".
func parseRedirect(a *action, words string) (err error) {
	code, location, _ := strings.Cut(words, " ")
	a.text = location
	if a.status.code, err = strconv.Atoi(code); err != nil || a.status.code < 300 || a.status.code > 399 {
		return errors.New("want a status of 300 to 399, and a URL after it or none")
	}
	return nil
}

// statusWords are what a status can be told with:
//
//	status:502 html                  a page of a load balancer's
//	status:500 saved                 the answer is stored under the key
//	status:409 empty                 without a body
//	status:503 code:not_started      with a code in the envelope
//	status:429 retry_after:7         the rest of the line is the header, and may be empty;
//	                                 date+90s is that long after the answer's own Date
type statusWords struct {
	code               int
	html, empty, saved bool
	word               string
	retryAfter         *string
}

func parseStatus(a *action, words string) (err error) {
	words, wait, hasWait := strings.Cut(words, " retry_after:")
	if hasWait {
		a.status.retryAfter = &wait
	}
	code, rest, _ := strings.Cut(words, " ")
	if a.status.code, err = strconv.Atoi(code); err != nil || a.status.code < 400 || a.status.code > 599 {
		return errors.New("want a status of 400 to 599")
	}
	for _, word := range strings.Fields(rest) {
		switch code, isCode := strings.CutPrefix(word, "code:"); {
		case isCode:
			a.status.word = code
		case word == "html":
			a.status.html = true
		case word == "empty":
			a.status.empty = true
		case word == "saved":
			a.status.saved = true
		default:
			return errors.New("want html, empty, saved, code:WORD or retry_after:VALUE after the status")
		}
	}
	return nil
}

// statusCodes are what the envelope says unless the rule says it.
var statusCodes = map[int]string{
	400: "validation_failed", 401: "unauthorized", 402: "insufficient_partner_balance", 403: "forbidden", 404: "not_found",
	408: "request_timeout", 409: "conflict", 422: "unprocessable", 425: "too_early", 429: "rate_limited",
	500: "internal_error", 502: "bad_gateway", 503: "unavailable", 504: "gateway_timeout",
}

// reply is the answer that the words describe.
func (s statusWords) reply(requestID string) reply {
	code := s.word
	if code == "" {
		code = statusCodes[s.code]
	}
	if code == "" {
		code = "status_" + strconv.Itoa(s.code)
	}
	r := problemf(s.code, code, "this is a fault that a rule has made").reply(requestID)
	switch {
	case s.html:
		page := fmt.Sprintf("<html><head><title>%d %s</title></head><body><center>load balancer</center></body></html>\n", s.code, http.StatusText(s.code))
		r = reply{status: s.code, header: http.Header{"Content-Type": {"text/html"}}, body: []byte(page), foreign: true}
	case s.empty:
		r = reply{status: s.code, header: http.Header{}}
	}
	if s.retryAfter != nil {
		r = r.with("Retry-After", *s.retryAfter)
	}
	return r
}
