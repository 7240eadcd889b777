package modelgatetest

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// outgoing is an answer on its way, which faults can still change.
type outgoing struct {
	reply
	date      time.Time
	requestID bool          // whether it says its id
	cut       int64         // the connection ends after so many bytes of the body; below 0: it does not
	pace      time.Duration // between two bytes
	stream    int64         // bytes of padding that are sent in place of the body
}

// respond sends an answer, with the faults that strike it on its way.
func (c *call) respond(answer reply) {
	out := &outgoing{reply: answer, date: c.u.Now(), requestID: true, cut: -1}
	err := c.each(AtOnResponse, func(*kind) bool { return true }, func(a *action) error {
		if a.kind.shape != nil {
			a.kind.shape(c, out, a)
			return nil
		}
		err := c.apply(a)
		if stopped, ok := errors.AsType[*stopped](err); ok {
			out.reply = stopped.reply
			return nil
		}
		return err
	})
	if err != nil {
		return // the connection is gone
	}
	c.end()
	out.head(c)
	out.write(c)
}

// head sets the headers.
func (o *outgoing) head(c *call) {
	h := c.w.Header()
	maps.Copy(h, o.header)
	if after, relative := strings.CutPrefix(h.Get("Retry-After"), "date"); relative {
		if d, err := time.ParseDuration(after); err == nil {
			h.Set("Retry-After", o.date.Add(d).Format(http.TimeFormat))
		}
	}
	if o.foreign {
		h["Date"] = nil // or else net/http writes one
		return
	}
	h.Set("Date", o.date.Format(http.TimeFormat))
	h.Set("Cache-Control", "no-store")
	if o.requestID {
		h.Set("X-Request-ID", c.requestID)
	} else {
		h.Del("Original-Request-ID")
	}
}

// write sends the body, as far as the faults let it.
func (o *outgoing) write(c *call) {
	if o.stream > 0 {
		o.writeHuge(c)
		return
	}
	c.w.Header().Set("Content-Length", strconv.Itoa(len(o.body)))
	c.w.WriteHeader(o.status)
	body := o.body
	if o.cut >= 0 {
		body = body[:min(o.cut, int64(len(body)))]
	}
	if c.u.anyAt(AtMidResponse) {
		half := len(body) / 2
		o.send(c, body[:half])
		if c.pass(AtMidResponse) != nil {
			return
		}
		body = body[half:]
	}
	o.send(c, body)
	if o.cut >= 0 {
		_ = c.cut(false)
	}
}

// send writes bytes so that they leave now. Who has left does not get them.
func (o *outgoing) send(c *call, text []byte) {
	flush := http.NewResponseController(c.w)
	step := len(text)
	if o.pace > 0 {
		step = 1
	}
	for len(text) > 0 {
		_, err := c.w.Write(text[:step])
		if err = errors.Join(err, flush.Flush()); err != nil {
			return
		}
		if text = text[step:]; o.pace > 0 && c.gone(o.pace) {
			return
		}
	}
	_ = flush.Flush() // the headers, where there is no body yet
}

// gone waits, and reports whether nobody needs the rest.
func (c *call) gone(d time.Duration) bool {
	select {
	case <-time.After(d):
		return false
	case <-c.r.Context().Done():
	case <-c.u.done:
	}
	return true
}

// writeHuge sends a JSON object with one long string, in chunks.
func (o *outgoing) writeHuge(c *call) {
	c.w.WriteHeader(o.status)
	padding := []byte(strings.Repeat("x", 32<<10))
	_, err := fmt.Fprint(c.w, `{"padding":"`)
	for left := o.stream; left > 0 && err == nil; left -= int64(len(padding)) {
		select {
		case <-c.u.done:
			return
		default:
			_, err = c.w.Write(padding[:min(left, int64(len(padding)))])
		}
	}
	if err == nil {
		_, _ = fmt.Fprint(c.w, `"}`)
	}
}
