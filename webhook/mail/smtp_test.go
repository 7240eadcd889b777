package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// example is a mail on its way.
func example() Mail {
	return Mail{ID: "mail_01", Recipient: address, Subject: "購読 subject", Body: "本文\n.\nthe body\n", CreatedAt: time.Date(2026, 5, 14, 0, 0, 0, 0, time.UTC)}
}

// What arrives is what was queued, under headers that are the same each time.
func TestWhatArrives(t *testing.T) {
	p := newPostbox(t)
	s := p.server(t, "smtp://localhost")
	for range 2 {
		if err := s.Send(t.Context(), example()); err != nil {
			t.Fatal(err)
		}
	}
	got := p.got()
	if len(got) != 2 || got[0].from != "hooks@example.jp" || got[0].to != address || got[0].tls || got[0].user != "" {
		t.Fatalf("got %+v", got)
	}
	if !bytes.Equal(got[0].raw, got[1].raw) {
		t.Errorf("sent again it is another mail:\n%s\n%s", got[0].raw, got[1].raw)
	}
	header, subject, body := read(t, got[0].raw)
	if subject != "購読 subject" || body != "本文\n.\nthe body\n" {
		t.Errorf("subject %q, body %q", subject, body)
	}
	for name, want := range map[string]string{
		"Message-Id": "<mail_01@example.jp>", "From": `"Jpintel" <hooks@example.jp>`, "To": "<" + address + ">",
		"Date": "Thu, 14 May 2026 00:00:00 +0000", "Auto-Submitted": "auto-generated", "User-Agent": "", "X-Mailer": "",
	} {
		if header.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, header.Get(name), want)
		}
	}
}

// A password is sent, under TLS or to this machine.
func TestAuth(t *testing.T) {
	login := url.UserPassword(user, password).String()
	for name, c := range map[string]struct {
		url    string
		secure bool // the mail comes by TLS
		p      *postbox
	}{
		"to this machine": {"smtp://" + login + "@127.0.0.1", false, newPostbox(t)},
		"STARTTLS":        {"smtp://" + login + "@mail.example.test", true, newPostbox(t, certified(t))},
		"smtps":           {"smtps://" + login + "@mail.example.test", true, newTLSPostbox(t)},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.p
			if err := p.server(t, c.url).Send(t.Context(), example()); err != nil {
				t.Fatal(err)
			}
			if got := p.got(); len(got) != 1 || got[0].tls != c.secure || got[0].user != user {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// A wrong password is the operator's to mend: the mail waits. What the server
// says of it is not repeated.
func TestAWrongPassword(t *testing.T) {
	p := newPostbox(t)
	err := p.server(t, "smtp://jpintel:wrong-secret@localhost").Send(t.Context(), example())
	if err == nil || permanent(err) || err.Error() != "connecting: the server answered 535" {
		t.Errorf("got %v", err)
	}
	if p.asked("MAIL") {
		t.Error("it went on all the same")
	}
}

// Over an open network nothing is sent, no password either, before there is
// TLS with a certificate that is trusted and for that name.
func TestNothingInTheOpen(t *testing.T) {
	login := url.UserPassword(user, password).String() + "@"
	for name, c := range map[string]struct {
		url     string
		prepare func(*testing.T) *postbox
	}{
		"no STARTTLS":                 {"smtp://" + login + "mail.example.test", func(t *testing.T) *postbox { return newPostbox(t) }},
		"no STARTTLS, no password":    {"smtp://mail.example.test", func(t *testing.T) *postbox { return newPostbox(t) }},
		"a certificate of nobody":     {"smtp://" + login + "mail.example.test", func(t *testing.T) *postbox { p := newPostbox(t, certified(t)); p.roots = nil; return p }},
		"a certificate for another":   {"smtp://" + login + "mail.example.org", func(t *testing.T) *postbox { return newPostbox(t, certified(t)) }},
		"smtps, of nobody":            {"smtps://" + login + "mail.example.test", func(t *testing.T) *postbox { p := newTLSPostbox(t); p.roots = nil; return p }},
		"smtps to a server in plain":  {"smtps://" + login + "mail.example.test", func(t *testing.T) *postbox { return newPostbox(t) }},
		"a server that turns us away": {"smtp://" + login + "localhost", func(t *testing.T) *postbox { p := newPostbox(t); p.refuses("HELLO", says(421)); return p }},
	} {
		t.Run(name, func(t *testing.T) {
			p := c.prepare(t)
			err := p.server(t, c.url).Send(t.Context(), example())
			if err == nil || permanent(err) || strings.Contains(err.Error(), address) || strings.Contains(err.Error(), password) {
				t.Errorf("got %v", err)
			}
			if p.asked("AUTH") || p.asked("MAIL") {
				t.Errorf("steps %q", p.steps)
			}
		})
	}
}

// A refusal for good ends the mail, one for now does not, and neither repeats
// the address that the server repeats.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		step  string
		code  int
		final bool
		text  string
	}{
		{"RCPT", 451, false, "sending SMTP RCPT TO command: the server answered 451"},
		{"RCPT", 550, true, "sending SMTP RCPT TO command: the server answered 550"},
		{"MAIL", 553, true, "sending SMTP MAIL FROM command: the server answered 553"},
		{"MAIL", 530, false, "sending SMTP MAIL FROM command: the server answered 530"},
		{"DATA", 452, false, "closing SMTP DATA writer: the server answered 452"},
		{"DATA", 554, true, "closing SMTP DATA writer: the server answered 554"},
		{"HELLO", 554, false, "connecting: the server answered 554"},
	} {
		p := newPostbox(t)
		p.refuses(c.step, says(c.code))
		err := p.server(t, "smtp://localhost").Send(t.Context(), example())
		if err == nil || permanent(err) != c.final || err.Error() != c.text {
			t.Errorf("%d at %s: %v (for good: %v), want %s", c.code, c.step, err, permanent(err), c.text)
		}
	}
}

// A server that is there and says nothing is left when the time is over, and
// at once when the service stops.
func TestASilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p := &postbox{addr: listener.Addr().String()}
	for _, scheme := range []string{"smtp://localhost", "smtps://mail.example.test"} {
		s := p.server(t, scheme)
		s.timeout = 50 * time.Millisecond
		if err := s.Send(t.Context(), example()); err == nil || permanent(err) {
			t.Errorf("%s: got %v", scheme, err)
		}
		s.timeout = time.Hour
		ctx, cancel := context.WithCancel(t.Context())
		s.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, p.addr)
			cancel() // once it is connected
			return conn, err
		}
		if err := s.Send(ctx, example()); err == nil || permanent(err) {
			t.Errorf("%s, stopped: got %v", scheme, err)
		}
	}
}

func TestNobodyListens(t *testing.T) {
	s := (&postbox{}).server(t, "smtp://localhost")
	s.dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("refused, says " + address)
	}
	if err := s.Send(t.Context(), example()); err == nil || permanent(err) || err.Error() != "connecting: dial failed: refused, says [masked]" {
		t.Errorf("got %v", err)
	}
}

// What a server does after it has taken the mail changes nothing: to send it
// again would be a second mail.
func TestAPoorGoodbye(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		talk(conn, "220 hello", "250 EHLO", "250 NOOP", "250 MAIL", "250 RCPT", "354 DATA", "250 taken")
	}()
	p := &postbox{addr: listener.Addr().String()}
	if err := p.server(t, "smtp://localhost").Send(t.Context(), example()); err != nil {
		t.Errorf("got %v", err)
	}
}

// talk answers, and then hangs up.
func talk(conn net.Conn, answers ...string) {
	buffer := make([]byte, 64<<10)
	for i, answer := range answers {
		if i > 0 {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
		}
		if i == len(answers)-1 {
			for !bytes.Contains(buffer, []byte("\r\n.\r\n")) {
				if _, err := conn.Read(buffer); err != nil {
					return
				}
			}
		}
		if _, err := conn.Write([]byte(answer + "\r\n")); err != nil {
			return
		}
	}
}

// Nothing in a subject, a body or an address begins a header of its own.
func TestHeadersCannotBeInjected(t *testing.T) {
	p := newPostbox(t)
	s := p.server(t, "smtp://localhost")
	m := example()
	m.Subject = "disabled\r\nBcc: all@example.jp\nX-Evil: 1\u0085\u2028購読\x00"
	m.Body = "Bcc: all@example.jp\r\n\r\n.\r\nMAIL FROM:<x@y>\r\n"
	if err := s.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got := p.got()
	if len(got) != 1 {
		t.Fatalf("%d mails", len(got))
	}
	header, subject, body := read(t, got[0].raw)
	if header.Get("Bcc") != "" || header.Get("X-Evil") != "" || subject != "disabled  Bcc: all@example.jp X-Evil: 1  購読 " {
		t.Errorf("subject %q, headers %v", subject, header)
	}
	if body != strings.ReplaceAll(m.Body, "\r\n", "\n") {
		t.Errorf("body %q", body)
	}
	for _, recipient := range []string{"ops@customer.example\r\nBcc: all@example.jp", "ops@customer.example>\r\nDATA", "a@b.example, c@d.example", "nobody", ""} {
		m.Recipient = recipient
		if err := s.Send(t.Context(), m); !permanent(err) || strings.Contains(err.Error(), "example") {
			t.Errorf("to %q: %v", recipient, err)
		}
	}
	if len(p.got()) != 1 {
		t.Errorf("%d mails", len(p.got()))
	}
}

func TestURLs(t *testing.T) {
	for text, want := range map[string]string{
		"smtp://mail.example.jp":                 "mail.example.jp 587 false  ",
		"smtp://mail.example.jp:25/":             "mail.example.jp 25 false  ",
		"smtps://a:b%40c%20d@mail.example.jp":    "mail.example.jp 465 true a b@c d",
		"smtps://a%40x.jp:b@[2001:db8::1]:10465": "2001:db8::1 10465 true a@x.jp b",
	} {
		s, err := NewSMTP(text, from)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := fmt.Sprintf("%s %d %v %s %s", s.host, s.port, s.tls, s.user, s.password); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"", "mail.example.jp", "mail.example.jp:587", "http://x", "smtp:x", "smtp://", "smtp://:587", "smtp://x:0", "smtp://x:70000", "smtp://x/y", "smtp://x?tls=no", "smtp://x#y", "smtp://u@x", "smtp://:p@x"} {
		if s, err := NewSMTP(text, from); err == nil {
			t.Errorf("%q was read as %+v", text, s)
		}
	}
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, "::ffff:127.0.0.1": true, "10.0.0.1": false, "mail.example.jp": false, "localhost.example.jp": false} {
		if isLoopback(host) != want {
			t.Errorf("%s is this machine: %v", host, !want)
		}
	}
}
