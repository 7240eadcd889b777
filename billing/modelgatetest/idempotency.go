package modelgatetest

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"regexp"
	"time"
)

// Retention is how long an answer is kept under its key, from the acceptance of
// the first request. After it the key is new.
const Retention = 168 * time.Hour

// record is what is known under an Idempotency-Key.
type record struct {
	name        string
	fingerprint string
	acceptedAt  time.Time
	requestID   string // of the call that executes, or has executed
	finished    bool
	answer      reply
}

// finish stores the answer. A nil record is a call without a key.
func (r *record) finish(requestID string, answer reply) {
	if r != nil {
		r.finished, r.requestID, r.answer = true, requestID, answer
	}
}

// keyForm is an opaque text; it is not a quoted string.
var keyForm = regexp.MustCompile(`^[\x21-\x7e]{1,255}$`)

// checkKey holds the header against the contract. Where a key is not needed and
// there is none, none counts.
func (c *call) checkKey() error {
	values := c.r.Header.Values("Idempotency-Key")
	speaks := c.dialect()
	switch {
	case len(values) == 0 && speaks.keyOptional:
		return nil
	case len(values) == 0:
		return speaks.dress(problemf(http.StatusBadRequest, "idempotency_key_missing", "this call needs an Idempotency-Key"))
	case len(values) > 1 || !keyForm.MatchString(values[0]):
		return speaks.dress(problemf(http.StatusBadRequest, "idempotency_key_invalid", "want one Idempotency-Key of 1 to 255 visible ASCII characters"))
	}
	return nil
}

// fingerprint is what two requests under one key have to have in common.
func (c *call) fingerprint() string {
	sum := sha256.Sum256([]byte(c.r.Method + "\n" + c.r.URL.Path + "\n" + string(canonical(c.body))))
	return hex.EncodeToString(sum[:])
}

// recordName is the key in its name space.
func (c *call) recordName() string {
	if c.u.options.IdemScope == ScopeMethodPath {
		return c.r.Method + " " + c.r.URL.Path + " " + c.key
	}
	return c.key
}

// once executes unless the key says otherwise.
func (c *call) once(execute execution) (reply, error) {
	if err := c.passKey(); err != nil {
		return reply{}, err
	}
	replayed, err := c.begin()
	if err != nil {
		return reply{}, err
	}
	if replayed != nil {
		return *replayed, c.pass(AtAfterCommit)
	}
	return c.perform(execute)
}

// begin looks the key up: an answer to replay, a conflict, or neither and the key
// is this call's.
func (c *call) begin() (*reply, error) {
	u := c.u
	u.mu.Lock()
	defer u.mu.Unlock()
	now, name := u.clock.now(), c.recordName()
	if until, busy := u.busy[name]; busy && now.Before(until) {
		return nil, c.running()
	}
	known := u.records[name]
	switch {
	case known == nil, known.finished && !now.Before(known.acceptedAt.Add(Retention)):
		c.record = &record{name: name, fingerprint: c.fingerprint(), acceptedAt: now, requestID: c.requestID}
		u.records[name] = c.record
		return nil, nil
	case known.fingerprint != c.fingerprint():
		return nil, c.reused(known.requestID)
	case !known.finished:
		return nil, c.running()
	}
	u.trafficOf(c.key).Replays++
	answer := known.answer
	if answer.replay != nil {
		answer = *answer.replay
	}
	answer = answer.with("Idempotent-Replayed", "true").with("Original-Request-ID", known.requestID)
	return &answer, nil
}

// running is the answer while another call has the key. The mutex is held.
func (c *call) running() *problem {
	c.u.trafficOf(c.key).RefusedRunning++
	speaks := dialects[c.u.options.Profile]
	p := problemf(http.StatusConflict, speaks.running, "a request with this Idempotency-Key is being executed")
	p.retryable = true
	if speaks.retryAfter {
		p.retryAfter = "1"
	}
	return speaks.dress(p)
}

// reused is the answer where the key stands for something else. The mutex is
// held.
func (c *call) reused(originalRequestID string) *problem {
	c.u.trafficOf(c.key).RefusedReused++
	speaks := dialects[c.u.options.Profile]
	p := problemf(speaks.reusedStatus, speaks.reused, "this Idempotency-Key was used for another request")
	p.kind = "conflict"
	p.originalRequestID = originalRequestID
	return speaks.dress(p)
}

// release forgets a key whose call has ended without an answer. The mutex is
// held.
func (u *Upstream) release(r *record) {
	if r != nil && !r.finished && u.records[r.name] == r {
		delete(u.records, r.name)
	}
}
