package modelgatetest

import (
	"io"
	"net"
	"net/http"
	"time"
)

// stopped ends a call with an answer that a fault gives.
type stopped struct{ reply reply }

// Error implements error.
func (s *stopped) Error() string { return "a fault has answered" }

func (c *call) apply(a *action) error { return a.kind.do(c, a) }

// delay goes on later, whether or not the client is still there.
func (c *call) delay(a *action) error {
	timer := time.NewTimer(a.wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.u.done:
	}
	return nil
}

// hang says nothing until the client leaves.
func (c *call) hang(*action) error {
	_, _ = io.Copy(io.Discard, c.r.Body) // the server notices who leaves only when it has read all
	select {
	case <-c.r.Context().Done():
	case <-c.u.done:
	}
	return c.cut(true)
}

// drainTime bounds how long a closed connection is kept for what the client
// still sends: the kernel resets one that is closed with unread bytes.
const drainTime = time.Second

// cut ends the connection: with a FIN, or a RST.
func (c *call) cut(reset bool) error {
	c.end()
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return errGone // it has ended by itself
	}
	defer conn.Close()
	tcp, isTCP := conn.(*net.TCPConn)
	switch {
	case !isTCP: // unreachable unless somebody wraps the listener
	case reset:
		_ = tcp.SetLinger(0)
	case tcp.CloseWrite() == nil:
		_ = tcp.SetReadDeadline(time.Now().Add(drainTime))
		_, _ = io.Copy(io.Discard, tcp)
	}
	return errGone
}

func (c *call) saysStatus(a *action) error {
	answer := a.status.reply(c.requestID)
	if a.status.saved {
		c.save(answer)
	}
	return &stopped{answer}
}

// save stores an answer under the key that this call holds; without one it is
// only said.
func (c *call) save(answer reply) {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	c.record.finish(c.requestID, answer)
}

// elsewhere is where a redirect leads unless the rule says it: a name that no one
// has.
const elsewhere = "https://elsewhere.invalid/"

func (c *call) redirects(a *action) error {
	location := a.text
	if location == "" {
		location = elsewhere
	}
	return &stopped{reply{status: a.status.code, header: http.Header{"Location": {location}}}}
}

// saysReused answers as if the key stood for another request.
func (c *call) saysReused(*action) error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	original := c.u.ids.next("req", c.u.clock.now())
	if known := c.u.records[c.recordName()]; known != nil {
		original = known.requestID
	}
	return &stopped{c.reused(original).reply(c.requestID)}
}

// saysRunning lets the key count as running from now on, by the upstream's clock.
// 0s is this request only.
func (c *call) saysRunning(a *action) error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	c.u.busy[c.recordName()] = c.u.clock.now().Add(a.wait)
	return &stopped{c.running().reply(c.requestID)}
}

// loseRecord forgets what is stored under the key, or will be.
func (c *call) loseRecord(*action) error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	delete(c.u.records, c.recordName())
	return nil
}

// expireRecord lets the key's retention end now.
func (c *call) expireRecord(*action) error {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	if known := c.u.records[c.recordName()]; known != nil {
		known.acceptedAt = c.u.clock.now().Add(-Retention)
	}
	return nil
}

// readStale is for reads: a change is made to what is.
func (c *call) readStale(a *action) error {
	if !c.mutates() {
		c.stale = a.wait
	}
	return nil
}
