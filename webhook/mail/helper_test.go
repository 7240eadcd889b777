package mail

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"database/sql"
	"io"
	"math/big"
	"mime"
	"mime/quotedprintable"
	"net"
	netmail "net/mail"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"jpintel/store"
)

const (
	address  = "ops@customer.example"
	user     = "jpintel"
	password = "p:ss/w@rd 秘密"
	from     = "Jpintel <hooks@example.jp>"
)

// postbox is a real SMTP server on loopback and what it has taken.
type postbox struct {
	addr  string
	roots *x509.CertPool // of its certificate, where it has one
	tls   bool           // from the first byte

	mu     sync.Mutex
	steps  []string // of all sessions
	mails  []received
	refuse map[string]error // by step: RCPT, DATA …
}

type received struct {
	from, to string
	raw      []byte
	tls      bool
	user     string
}

// newPostbox starts a server; change may set what it offers.
func newPostbox(t *testing.T, change ...func(*postbox, *smtp.Server)) *postbox {
	t.Helper()
	p := &postbox{refuse: map[string]error{}}
	server := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) {
		_, secure := c.TLSConnectionState()
		return &session{p: p, received: received{tls: secure}}, p.step("HELLO")
	}))
	server.Domain, server.AllowInsecureAuth = "mail.example.test", true
	server.ErrorLog = discard{}
	for _, c := range change {
		c(p, server)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.addr = listener.Addr().String()
	if p.tls {
		listener = tls.NewListener(listener, server.TLSConfig)
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return p
}

// newTLSPostbox is newPostbox with TLS from the first byte.
func newTLSPostbox(t *testing.T) *postbox {
	t.Helper()
	return newPostbox(t, certified(t), func(p *postbox, _ *smtp.Server) { p.tls = true })
}

// discard drops what the library's server logs of broken connections.
type discard struct{}

func (discard) Printf(string, ...any) {}
func (discard) Println(...any)        {}

// certified gives a postbox a certificate for mail.example.test.
func certified(t *testing.T) func(*postbox, *smtp.Server) {
	return func(p *postbox, s *smtp.Server) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"mail.example.test"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		p.roots = x509.NewCertPool()
		p.roots.AddCert(certificate)
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}
}

func (p *postbox) step(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps = append(p.steps, name)
	return p.refuse[name]
}

// refuses sets what the server answers at a step; nil: it agrees again.
func (p *postbox) refuses(step string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse[step] = err
}

func (p *postbox) got() []received {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.mails)
}

func (p *postbox) asked(step string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.steps, step)
}

// session is one connection to a postbox.
type session struct {
	p *postbox
	received
}

func (s *session) AuthMechanisms() []string { return []string{sasl.Plain} }

func (s *session) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, name, secret string) error {
		if err := s.p.step("AUTH"); err != nil {
			return err
		}
		if name != user || secret != password {
			return &smtp.SMTPError{Code: 535, EnhancedCode: smtp.EnhancedCode{5, 7, 8}, Message: "wrong password " + secret}
		}
		s.user = name
		return nil
	}), nil
}

func (s *session) Mail(from string, _ *smtp.MailOptions) error {
	s.from = from
	return s.p.step("MAIL")
}

func (s *session) Rcpt(to string, _ *smtp.RcptOptions) error {
	s.to = to
	return s.p.step("RCPT")
}

func (s *session) Data(r io.Reader) error {
	raw, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := s.p.step("DATA"); err != nil {
		return err
	}
	s.raw = raw
	s.p.mu.Lock()
	s.p.mails = append(s.p.mails, s.received)
	s.p.mu.Unlock()
	return nil
}

func (s *session) Reset()        {}
func (s *session) Logout() error { return nil }

// says is an answer with the address in its words.
func says(code int) error {
	return &smtp.SMTPError{Code: code, EnhancedCode: smtp.NoEnhancedCode, Message: "not for <" + address + ">"}
}

// read parses a mail and decodes what people see of it.
func read(t *testing.T, raw []byte) (header netmail.Header, subject, body string) {
	t.Helper()
	m, err := netmail.ReadMessage(bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	subject, err = new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
	if err != nil {
		t.Fatal(err)
	}
	if m.Header.Get("Content-Transfer-Encoding") != "quoted-printable" || !strings.HasPrefix(m.Header.Get("Content-Type"), "text/plain; charset=UTF-8") {
		t.Errorf("headers %v", m.Header)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil {
		t.Fatal(err)
	}
	return m.Header, subject, strings.ReplaceAll(string(text), "\r\n", "\n")
}

// server is a client of the postbox under a URL, whatever host it names.
func (p *postbox) server(t *testing.T, url string) *SMTP {
	t.Helper()
	s, err := NewSMTP(url, from)
	if err != nil {
		t.Fatal(err)
	}
	s.roots = p.roots
	s.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, p.addr)
	}
	return s
}

// queue writes a mail for a customer, who is made the first time.
func queue(t *testing.T, db *store.DB, customer, email string) {
	t.Helper()
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		if _, _, err := store.CreateCustomer(tx, store.Customer{CustomerID: customer, Tier: store.TierPaid, Email: email}); err != nil {
			return err
		}
		return Queue(tx, Mail{CustomerID: customer, SubscriptionID: "sub_1", Kind: "test", Subject: "購読 subject", Body: "本文\n.\nthe body\n"})
	}); err != nil {
		t.Fatal(err)
	}
}

// states reads the queue: state, attempts and last error of each mail.
func states(t *testing.T, db *store.DB) []string {
	t.Helper()
	rows, err := db.Reader(context.Background()).Query(`SELECT state || ' ' || attempts || ' ' || last_error FROM mails ORDER BY mail_seq`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (s string, err error) { err = r.Scan(&s); return s, err })
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// makeDue brings every pending mail's next attempt forward.
func makeDue(t *testing.T, db *store.DB) {
	t.Helper()
	if err := db.Write(context.Background(), func(tx *store.Tx) error {
		_, err := tx.Exec(`UPDATE mails SET next_attempt_at_ms = 0 WHERE state = 'pending'`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
