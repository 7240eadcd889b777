package main

import (
	"bytes"
	"io"
	"mime/quotedprintable"
	"net"
	"net/http"
	"net/mail"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"
)

// mailPassword is what test mail servers want to hear.
const mailPassword = "mail-password-0123456789"

// postbox is an SMTP server on this machine that wants a password.
type postbox struct {
	addr string

	mu    sync.Mutex
	mails []string // as they came
}

func newPostbox(t *testing.T) *postbox {
	t.Helper()
	p := &postbox{}
	server := smtp.NewServer(smtp.BackendFunc(func(*smtp.Conn) (smtp.Session, error) { return &mailSession{p: p}, nil }))
	server.Domain, server.AllowInsecureAuth = "localhost", true
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = listener.Addr().String()
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return p
}

// url is what JPINTEL_SMTP_URL is set to.
func (p *postbox) url() string {
	return (&url.URL{Scheme: "smtp", User: url.UserPassword("jpintel", mailPassword), Host: p.addr}).String()
}

func (p *postbox) got() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mails)
}

// mailSession is one connection to a postbox.
type mailSession struct {
	p     *postbox
	known bool
}

func (s *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *mailSession) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, name, secret string) error {
		if name != "jpintel" || secret != mailPassword {
			return smtp.ErrAuthFailed
		}
		s.known = true
		return nil
	}), nil
}

func (s *mailSession) Mail(string, *smtp.MailOptions) error {
	if !s.known {
		return smtp.ErrAuthRequired
	}
	return nil
}

func (s *mailSession) Rcpt(string, *smtp.RcptOptions) error { return nil }

func (s *mailSession) Data(r io.Reader) error {
	text, err := io.ReadAll(r)
	s.p.mu.Lock()
	s.p.mails = append(s.p.mails, string(text))
	s.p.mu.Unlock()
	return err
}

func (s *mailSession) Reset()        {}
func (s *mailSession) Logout() error { return nil }

// reachable adds a paid customer with an address, whose key the client then has.
func (s *procServer) reachable(id string) {
	s.t.Helper()
	s.must(s.client.admin(s.t.Context(), "POST", "/v1/admin/customers", map[string]any{"customer_id": id, "tier": "paid", "email": "ops@customer.example"}, nil))
	var key createKeyAnswer
	s.must(s.client.admin(s.t.Context(), "POST", "/v1/admin/customers/"+id+"/keys", nil, &key))
	s.client.key = key.APIKey
}

// Owners are told by mail, while the kill switch is on too, and a mail outlives
// a restart. Neither the address nor the password is in a log.
func TestNotices(t *testing.T) {
	t.Parallel()
	db, post := filepath.Join(t.TempDir(), "jpintel.db"), newPostbox(t)
	status := http.StatusInternalServerError
	receiver := procReceive(t, func(r procRequest) int {
		if r.Path == "/gone/t0ken" {
			return http.StatusGone
		}
		return status
	})
	mailing := []string{"JPINTEL_SMTP_URL=" + post.url(), "JPINTEL_MAIL_FROM=Jpintel <hooks@example.jp>", "JPINTEL_PUBLIC_URL=https://hooks.example.jp", "JPINTEL_LOG_LEVEL=debug"}
	s := procServe(t, db, append(mailing, "JPINTEL_WEBHOOK_WARN_AFTER=off")...)
	s.reachable("cus_secret")
	gone, failing := s.subscribe(receiver.url+"/gone/t0ken", nil), s.subscribe(receiver.url+"/failing/t0ken", nil)
	s.put("UNI-1", map[string]any{"primary_name": "補助金"})
	procUntil(t, "the owner is told of the disable", func() bool { return len(post.got()) == 1 })
	s.settled(gone, failing)
	s.stop()

	before := len(receiver.got())
	switched := procServeAs(t, s.client, db, append(mailing, "JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH=1", "JPINTEL_WEBHOOK_WARN_AFTER=1ms")...)
	switched.put("UNI-2", map[string]any{"primary_name": "補助金"})
	procUntil(t, "the owner is warned", func() bool { return len(post.got()) == 2 })
	switched.stop()
	if n := len(receiver.got()); n != before {
		t.Errorf("%d requests while the kill switch was on", n-before)
	}

	for i, want := range []string{"Reason:       410_gone\n", "https://hooks.example.jp/v1/webhooks/test/" + failing.ID} {
		header, body := readMail(t, post.got()[i])
		if header.Get("To") != "<ops@customer.example>" || !strings.HasSuffix(header.Get("Message-Id"), "@example.jp>") || !strings.Contains(body, want) {
			t.Errorf("mail %d: %v, no %q in\n%s", i, header, want, body)
		}
		if strings.Contains(body, "t0ken") || strings.Contains(body, "cus_secret") {
			t.Errorf("mail %d: a secret in\n%s", i, body)
		}
	}
	for i, log := range []string{s.out.String(), switched.out.String()} {
		if strings.Count(log, `"msg":"mail_sent"`) != 1 {
			t.Errorf("log %d: not one mail_sent", i)
		}
		for _, secret := range []string{"ops@customer.example", "customer.example", mailPassword, "cus_secret", "t0ken"} {
			if strings.Contains(log, secret) {
				t.Errorf("log %d: %s is in it", i, secret)
			}
		}
	}
}

func readMail(t *testing.T, text string) (mail.Header, string) {
	t.Helper()
	m, err := mail.ReadMessage(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	body, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil {
		t.Fatal(err)
	}
	return m.Header, string(bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n")))
}

// An SMTP server that takes the connection and says nothing holds up mails and
// nothing else: webhooks go out, and the service stops in time.
func TestASilentMailServer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	connected := make(chan net.Conn, 1)
	go func() {
		if conn, err := silent.Accept(); err == nil {
			connected <- conn
		}
	}()
	receiver := procReceive(t, func(r procRequest) int {
		if r.Path == "/gone" {
			return http.StatusGone
		}
		return http.StatusNoContent
	})
	s := procServe(t, filepath.Join(t.TempDir(), "jpintel.db"), "JPINTEL_SMTP_URL=smtp://"+silent.Addr().String(), "JPINTEL_MAIL_FROM=hooks@example.jp")
	s.reachable("cus_a")
	s.subscribe(receiver.url+"/gone", nil)
	s.put("UNI-1", map[string]any{"primary_name": "補助金"})
	select {
	case conn := <-connected:
		defer conn.Close()
	case <-time.After(procPatience):
		t.Fatal("nobody connects to the mail server")
	}
	other := s.subscribe(receiver.url+"/good", nil)
	s.put("UNI-2", map[string]any{"primary_name": "補助金"})
	procUntil(t, "the event has arrived meanwhile", func() bool {
		return slices.ContainsFunc(receiver.got(), func(r procRequest) bool { return r.Path == "/good" })
	})
	s.settled(other)
	s.stop()
	if log := s.out.String(); strings.Count(log, `"msg":"mail_not_sent_yet"`) != 1 || strings.Contains(log, `"msg":"mail_sent"`) {
		t.Errorf("the log: %s", log)
	}
}
