package modelgatetest

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/julienschmidt/httprouter"
)

const (
	// basePath is where the contract's paths begin.
	basePath = "/v1"
	// maxBody is the most bytes that a request's body may have.
	maxBody = 64 << 10
)

// operation is a row of the contract's table.
type operation struct {
	method, path string
	// prepare reads and validates a request without looking at what is stored. Its
	// errors are never stored under the key.
	prepare func(*call) (execution, error)
}

// execution does what a prepared request asks for. Its answer, which may be a
// *problem, is stored under the key.
type execution func(*session) (reply, error)

// operations is the contract's table.
var operations = []operation{
	{"POST", "/groups", createGroup},
	{"GET", "/groups", listGroups},
	{"GET", "/groups/:gid", getGroup},
	{"PATCH", "/groups/:gid", changeGroup},
	{"DELETE", "/groups/:gid", deleteGroup},

	{"POST", "/groups/:gid/keys", createKey},
	{"GET", "/groups/:gid/keys", listKeys},
	{"GET", "/keys/:kid", getKey},
	{"PATCH", "/keys/:kid", changeKey},
	{"DELETE", "/keys/:kid", revokeKey},

	{"GET", "/groups/:gid/limits", getLimits},
	{"PATCH", "/groups/:gid/limits", changeLimits},

	{"POST", "/groups/:gid/top-ups", topUp},
	{"POST", "/groups/:gid/adjustments", adjust},
	{"GET", "/groups/:gid/balance", getBalance},
	{"GET", "/balance", getWallet},
	{"GET", "/transactions", listTransactions},
	{"GET", "/transactions/:id", getTransaction},

	{"GET", "/requests", listUsage},
	{"GET", "/audit-events", listAudit},
}

// session is an execution under the mutex.
type session struct {
	*tx
	data
	u       *Upstream
	options Options
	call    *call
	at      time.Time // what is read is as it was then: now, unless the read is stale
	audit   *auditEvent
}

func (s *session) id(prefix string) string { return s.u.ids.next(prefix, s.now) }

// call is one request on its way.
type call struct {
	u         *Upstream
	w         http.ResponseWriter
	r         *http.Request
	op        operation
	params    httprouter.Params
	requestID string
	key       string // the Idempotency-Key as it was sent; "" where none counts
	body      map[string]any
	malformed error         // why there is none, though something was sent
	stale     time.Duration // reads show what was this long ago
	record    *record       // of the key, while this call executes
	// uncommitted: it was executed, and if it ends now that is lost.
	uncommitted bool
	ended, left sync.Once
}

// errGone ends a call whose connection is no more.
var errGone = errors.New("the connection is gone")

// serve takes a request through all of its stations.
func (u *Upstream) serve(w http.ResponseWriter, r *http.Request, op operation, params httprouter.Params) {
	if !u.enter() {
		panic(http.ErrAbortHandler)
	}
	defer u.running.Done()
	c := &call{u: u, w: w, r: r, op: op, params: params}
	c.arrive()
	answer, err := c.answer()
	if !errors.Is(err, errGone) {
		c.respond(answer)
	}
}

// mutates reports whether the request needs a key.
func (c *call) mutates() bool {
	return c.r.Method == http.MethodPost || c.r.Method == http.MethodPatch || c.r.Method == http.MethodDelete
}

// arrive counts the request, before anything of it can fail.
func (c *call) arrive() {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	defer c.u.notify()
	c.requestID = c.u.ids.next("req", c.u.clock.now())
	c.u.served++
	if keys := c.r.Header.Values("Idempotency-Key"); c.mutates() && len(keys) == 1 {
		c.key = keys[0]
		c.u.trafficOf(c.key).arrive()
		context.AfterFunc(c.r.Context(), c.leave) // it may go on here without its client
	}
}

// leave counts the request out, once.
func (c *call) leave() {
	c.left.Do(func() {
		c.u.mu.Lock()
		defer c.u.mu.Unlock()
		defer c.u.notify()
		if c.key != "" {
			c.u.trafficOf(c.key).InFlight--
		}
	})
}

// end gives the key free and counts the request out: just before its answer, or
// its connection's end, can be seen.
func (c *call) end() {
	c.leave()
	c.ended.Do(func() {
		c.u.mu.Lock()
		defer c.u.mu.Unlock()
		defer c.u.notify()
		c.u.release(c.record)
		if c.uncommitted && c.key != "" {
			c.u.trafficOf(c.key).RolledBack++
		}
	})
}

// answer is what the upstream has to say, faults up to after_commit included;
// errGone: nothing, to nobody.
func (c *call) answer() (reply, error) {
	answer, err := c.walk()
	if err == nil || errors.Is(err, errGone) {
		return answer, err
	}
	return c.failed(err), nil
}

// failed is the answer that an error stands for.
func (c *call) failed(err error) reply {
	if stopped, ok := errors.AsType[*stopped](err); ok {
		return stopped.reply
	}
	if p, ok := errors.AsType[*problem](err); ok {
		return p.reply(c.requestID)
	}
	panic(err) // unreachable: there are no other errors
}

func (c *call) walk() (reply, error) {
	if err := c.pass(AtAccept); err != nil {
		return reply{}, err
	}
	if err := c.read(); err != nil {
		return reply{}, err
	}
	if err := c.pass(AtBeforeAuth); err != nil {
		return reply{}, err
	}
	if err := c.authorize(); err != nil {
		return reply{}, err
	}
	execute, err := c.prepare()
	if err != nil {
		return reply{}, err
	}
	if !c.mutates() || c.key == "" {
		return c.perform(execute)
	}
	return c.once(execute)
}

// read takes the whole body in, and counts the request's fingerprint, whatever
// becomes of it.
func (c *call) read() error {
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return problemf(http.StatusRequestEntityTooLarge, "payload_too_large", "a body has at most %d bytes", maxBody)
	}
	if err != nil {
		return c.cut(false) // half a request is none
	}
	if len(text) > 0 {
		c.body, c.malformed = parseObject(text)
	}
	if c.key != "" && c.malformed == nil {
		c.u.mu.Lock()
		defer c.u.mu.Unlock()
		c.u.trafficOf(c.key).saw(c.fingerprint())
	}
	return nil
}

func (c *call) authorize() error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	scheme, token, _ := strings.Cut(c.r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare([]byte(token), []byte(c.u.options.Token)) == 1 {
		return nil
	}
	return problemf(http.StatusUnauthorized, "unauthorized", "missing or unknown token")
}

// prepare validates everything that can be validated without what is stored.
func (c *call) prepare() (execution, error) {
	if c.op.path != "" && c.mutates() {
		if err := c.checkKey(); err != nil {
			return nil, err
		}
		if err := c.checkBody(); err != nil {
			return nil, err
		}
		if err := c.noQuery(); err != nil {
			return nil, err
		}
	}
	return c.op.prepare(c)
}

// checkBody holds the body against the contract: an object, and none for a DELETE.
func (c *call) checkBody() error {
	if c.r.Method == http.MethodDelete {
		if c.body != nil || c.malformed != nil {
			return invalidf("", "a DELETE has no body")
		}
		return nil
	}
	mediaType, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if charset := params["charset"]; err != nil || mediaType != "application/json" || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return problemf(http.StatusUnsupportedMediaType, "unsupported_media_type", "want Content-Type: application/json")
	}
	if c.malformed != nil {
		return problemf(http.StatusBadRequest, "malformed_json", "the body is no JSON object: %v", c.malformed)
	}
	if c.body == nil {
		return problemf(http.StatusBadRequest, "malformed_json", "the body is missing")
	}
	return nil
}

func (c *call) fields() *fields { return &fields{values: c.body} }

func (c *call) sourceIP() string {
	host, _, _ := net.SplitHostPort(c.r.RemoteAddr)
	return host
}

// perform executes, between the faults that are before and after it.
func (c *call) perform(execute execution) (reply, error) {
	if err := c.pass(AtBeforeExecute); err != nil {
		return reply{}, err
	}
	err := c.each(AtAfterExecute, func(*kind) bool { return true }, func(a *action) error {
		if !c.uncommitted {
			c.transact(execute, false) // what is not committed nobody sees
			c.uncommitted = true
		}
		return c.apply(a)
	})
	if err != nil {
		return reply{}, err
	}
	c.uncommitted = false
	answer := c.transact(execute, true)
	return answer, c.pass(AtAfterCommit)
}

// transact executes in one transaction: the change, its audit event and, under
// the key, the answer. Without commit all of it is rolled back.
func (c *call) transact(execute execution, commit bool) reply {
	u := c.u
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.notify()
	s := &session{tx: &tx{now: u.clock.now()}, data: u.data, u: u, options: u.options, call: c}
	s.at = s.now.Add(-c.stale)
	answer, err := execute(s)
	if err != nil {
		s.rollback()
		s.audit, answer = nil, c.failed(err)
	}
	if !commit {
		s.rollback()
		return answer
	}
	if s.audit != nil {
		s.data.audit.put(s.tx, s.audit.ID, *s.audit)
	}
	if c.key != "" {
		u.trafficOf(c.key).Executions++
	}
	c.record.finish(c.requestID, answer)
	return answer
}
