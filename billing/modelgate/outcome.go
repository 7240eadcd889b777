package modelgate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// Class is what one send came to: what may be done next hangs on nothing else.
type Class string

// The classes.
const (
	Succeeded   Class = "succeeded"          // 2xx, and it confirms what was asked for
	Malformed   Class = "malformed"          // 2xx, but nobody can tell what for: it may have happened
	NotSent     Class = "not_sent"           // not one byte of the request has left
	Unknown     Class = "unknown"            // it may have happened
	NotBegun    Class = "not_begun"          // the upstream says that it has not done it, or not yet
	Replayed5xx Class = "replayed_5xx"       // the stored answer is a failure: asking again gives no other
	Refused     Class = "refused"            // the upstream has judged it and said no
	Auth        Class = "upstream_auth"      // our own key is not accepted
	Wallet      Class = "partner_wallet_low" // the partner's wallet is empty
	KeyReused   Class = "key_reused"         // this Idempotency-Key was used for something else
	RefConflict Class = "external_ref_conflict"
	Unclear     Class = "conflict_unclear"  // a 409 that does not say which conflict
	Redirected  Class = "upstream_redirect" // not followed; it may have happened
)

// Codes that are not the upstream's.
const (
	CodeEcho      = "echo_mismatch"
	CodeMalformed = "malformed_answer"
	CodeLate      = "too_late_to_send"
)

// Outcome is what one send came to. Its texts are free of secrets and may be
// stored, but for Body and Answer.
type Outcome struct {
	Class      Class
	Code       string // the upstream's, or the kind of failure
	Message    string
	Status     int    // 0: no answer
	RequestID  string // the upstream's
	Replayed   bool   // it is the stored answer to an earlier send
	OriginalID string // the upstream's id of that send; "": it has not said
	Retry      string // Retry-After as it was sent
	RetryAfter time.Duration
	Date       time.Time // by the upstream's clock; zero: it has not said
	SHA256     string    // of the body, in hex
	Excerpt    string    // of the body, where it is no success and can have no secret
	Body       []byte    // as it came: keep it sealed or not at all
	Answer     Answer    // of Succeeded
	Wrote      bool      // a part of the request may have left
}

// Send makes one request, which may begin until then and not later.
func (c *Client) Send(ctx context.Context, r Request, until time.Time) Outcome {
	got := c.exchange(ctx, r, until)
	if got.status == 0 {
		return failed(got)
	}
	o := judge(r, got)
	o.Wrote = true
	o.Message, o.Excerpt = c.clean(o.Message), c.clean(o.Excerpt)
	return o
}

// Judge classifies an answer that was kept: its status and body alone.
func Judge(r Request, status int, body []byte) Outcome {
	o := judge(r, reply{status: status, header: http.Header{"Content-Type": {"application/json"}}, body: body})
	o.Message, o.Excerpt = Redact(o.Message), Redact(o.Excerpt)
	return o
}

// failed is a request without an answer.
func failed(got reply) Outcome {
	o := Outcome{Class: NotSent, Code: failureCode(got.err), Wrote: got.wrote}
	if got.wrote {
		o.Class = Unknown
	}
	o.Message = failureWords[o.Code]
	return o
}

// failureWords say a failure without quoting it: an error's own text may hold
// anything.
var failureWords = map[string]string{
	CodeLate:              errLate.Error(),
	"dns":                 "the upstream's name was not found",
	"connection_refused":  "the upstream refuses connections",
	"timeout":             "the upstream did not answer in time",
	"connection_reset":    "the connection was reset",
	"connection_closed":   "the connection was closed before the answer was complete",
	"answer_too_large":    errTooLarge.Error(),
	"canceled":            "this program is stopping",
	"connection":          "the connection failed",
	"answer_not_identity": "the answer is compressed, though that was not asked for",
}

func failureCode(err error) string {
	_, isDNS := errors.AsType[*net.DNSError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case errors.Is(err, errLate):
		return CodeLate
	case errors.Is(err, errTooLarge):
		return "answer_too_large"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), isNet && timeout.Timeout():
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	case isDNS:
		return "dns"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection_reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection_closed"
	}
	return "connection"
}

// judge classifies an answer.
func judge(r Request, got reply) Outcome {
	sum := sha256.Sum256(got.body)
	o := Outcome{Status: got.status, SHA256: hex.EncodeToString(sum[:]), Body: got.body, Replayed: got.header.Get("Idempotent-Replayed") == "true",
		RequestID: cleanID(got.header.Get("X-Request-Id")), OriginalID: cleanID(got.header.Get("Original-Request-Id")), Retry: cut(got.header.Get("Retry-After"), 64)}
	if date, err := http.ParseTime(got.header.Get("Date")); err == nil {
		o.Date = date.UTC()
	}
	o.RetryAfter = retryAfter(got.header.Get("Retry-After"), o.Date)
	if got.err == nil && got.header.Get("Content-Encoding") != "" && got.header.Get("Content-Encoding") != "identity" {
		o.Code = "answer_not_identity"
	} else if got.err != nil {
		o.Code = failureCode(got.err)
	}
	if o.Code != "" { // the body cannot be relied on
		o.Message = failureWords[o.Code]
		got.body = nil
	}
	if got.status >= 200 && got.status <= 299 {
		o.success(r, got)
	} else {
		o.failure(r, got)
	}
	return o
}

// success judges a 2xx.
func (o *Outcome) success(r Request, got reply) {
	o.Class = Malformed
	if o.Code != "" {
		return
	}
	o.Code = CodeMalformed
	if kind, _, err := mime.ParseMediaType(got.header.Get("Content-Type")); err != nil || kind != "application/json" {
		o.Message = "the answer is not application/json"
		return
	}
	answer, echo, err := readAnswer(r, got.body)
	if echo {
		o.Code = CodeEcho
	}
	if err != nil {
		o.Message, o.Excerpt = err.Error(), o.excerpt(r)
		return
	}
	o.Class, o.Code, o.Answer = Succeeded, "", answer
	if len(answer.Violations) > 0 {
		o.Code, o.Message = "contract_violation", strings.Join(answer.Violations, "; ")
	}
}

// failure judges everything else.
func (o *Outcome) failure(r Request, got reply) {
	e := readEnvelope(got.header.Get("Content-Type"), got.body)
	if op, _, ok := find(r); ok && op.secret { // whoever repeats it may do so in any writing
		e.message = opaque.ReplaceAllString(e.message, "[masked]")
	}
	o.Class = classOf(got.status, e, o)
	o.Code, o.Message = firstOf(o.Code, cleanID(e.code), "http_"+strconv.Itoa(got.status)), firstOf(o.Message, e.message)
	o.RequestID, o.Excerpt = firstOf(o.RequestID, cleanID(e.requestID)), o.excerpt(r)
}

// classOf is the table of answers that are no success.
func classOf(status int, e envelope, o *Outcome) Class {
	switch {
	case status >= 300 && status <= 399:
		return Redirected
	case status >= 500 && o.Replayed:
		return Replayed5xx
	case status == http.StatusServiceUnavailable && e.code == codeNotStarted:
		return NotBegun
	case status < 400 || status >= 500 || status == http.StatusRequestTimeout:
		return Unknown
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return Auth
	case status == http.StatusPaymentRequired:
		return Wallet
	case status == http.StatusTooEarly || status == http.StatusTooManyRequests:
		return NotBegun
	case e.reused(status):
		return KeyReused
	case status == http.StatusConflict:
		return conflict(e, o)
	case !e.ok: // not the upstream's own word: something in between has spoken
		return Unknown
	}
	return Refused
}

// conflict tells the conflicts apart.
func conflict(e envelope, o *Outcome) Class {
	switch {
	case codesInProgress[e.code]:
		return NotBegun
	case e.code == codeRefConflict:
		return RefConflict
	case e.problem && (e.code == "problem" || strings.Contains(e.code, "idempotency")), !e.ok && o.RetryAfter > 0:
		// In progress, as the IETF's draft says it, or in few words.
		return NotBegun
	case !e.ok:
		return Unclear
	}
	return Refused
}

// The bounds of Retry-After.
const (
	minRetryAfter = time.Second
	maxRetryAfter = time.Hour
)

// retryAfter reads Retry-After: seconds, or a time by the upstream's own clock.
// 0: it says nothing that can be used.
func retryAfter(text string, date time.Time) time.Duration {
	if text == "" {
		return 0
	}
	if strings.Trim(text, "0123456789") == "" {
		if len(text) > 10 { // centuries
			return 0
		}
		var seconds int64
		for _, c := range []byte(text) {
			seconds = seconds*10 + int64(c-'0')
		}
		return clamp(time.Duration(min(seconds, int64(maxRetryAfter/time.Second))) * time.Second)
	}
	at, err := http.ParseTime(text)
	if err != nil || date.IsZero() || at.Before(date) {
		return 0
	}
	return clamp(at.Sub(date))
}

func clamp(d time.Duration) time.Duration { return min(max(d, minRetryAfter), maxRetryAfter) }

// maxExcerpt is how much of an answer's body is kept, in bytes.
const maxExcerpt = 512

// excerpt is the beginning of a body; nothing where it could hold a secret,
// however it is broken.
func (o *Outcome) excerpt(r Request) string {
	if op, _, ok := find(r); ok && op.secret {
		return ""
	}
	return cut(Redact(string(o.Body[:min(len(o.Body), 4*maxExcerpt)])), maxExcerpt)
}

// secretLike matches what an answer must not leave behind.
var secretLike = regexp.MustCompile(`(?i)"(secret|api_key|token|authorization)"\s*:\s*"[^"]*"?|\bbearer\s+[A-Za-z0-9._~+/=-]+|\b(mgp|mgk|mgs|mg|sk|rk)_[A-Za-z0-9_-]{12,}|(whsec|jpk)_[A-Za-z0-9_-]{8,}`)

// opaque matches what may be a secret in another writing: base64, hex or
// percent-encoded.
var opaque = regexp.MustCompile(`[A-Za-z0-9+/_=%-]{20,}`)

// Redact replaces what looks like a secret.
func Redact(text string) string { return secretLike.ReplaceAllString(text, "[masked]") }

// clean is Redact, and takes out our own key wherever it stands.
func (c *Client) clean(text string) string {
	return Redact(strings.ReplaceAll(text, c.key, "[masked]"))
}

// cut is one line of clean text of at most so many bytes.
func cut(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}

// cleanID keeps an id or a code of the upstream's that has the form of one.
func cleanID(id string) string {
	if !idForm.MatchString(id) || secretLike.MatchString(id) {
		return ""
	}
	return id
}
