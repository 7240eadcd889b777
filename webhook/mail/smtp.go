package mail

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	gomail "github.com/wneessen/go-mail"
)

// dialogue bounds one mail from the connection to the server's last word.
const dialogue = 30 * time.Second

// The ports of the schemes.
const (
	portSubmission = 587
	portTLS        = 465
)

// SMTP is the operator's mail server. Over smtps everything is TLS; over smtp
// STARTTLS is required, but to a server on this machine, which nothing is
// encrypted to. A certificate is always judged.
type SMTP struct {
	host           string
	port           int
	tls            bool // from the first byte
	user, password string
	from           *netmail.Address

	roots   *x509.CertPool // nil: the system's
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)
	timeout time.Duration
}

// NewSMTP reads a server's URL and the sender's address. Its errors do not
// repeat the URL, which may hold a password.
func NewSMTP(server, from string) (*SMTP, error) {
	s := &SMTP{dial: (&net.Dialer{}).DialContext, timeout: dialogue}
	if err := s.parse(server); err != nil {
		return nil, err
	}
	var err error
	if s.from, err = netmail.ParseAddress(from); err != nil {
		return nil, errors.New("the sender is not an address")
	}
	return s, nil
}

var errURL = errors.New("not smtp://user:password@host:port or smtps://…")

func (s *SMTP) parse(server string) error {
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return errURL
	}
	s.host = u.Hostname()
	switch u.Scheme {
	case "smtp":
		s.port = portSubmission
	case "smtps":
		s.port, s.tls = portTLS, true
	default:
		return errURL
	}
	if text := u.Port(); text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil || port == 0 {
			return errURL
		}
		s.port = int(port)
	}
	s.user = u.User.Username()
	s.password, _ = u.User.Password()
	if (s.user == "") != (s.password == "") {
		return errURL
	}
	return nil
}

// Send hands a mail to the server, which has taken it where the error is nil.
// Nothing of it is sent over an open network before there is TLS.
func (s *SMTP) Send(ctx context.Context, m Mail) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	message, err := s.message(m)
	if err != nil {
		return &failure{step: "writing the message", err: err, final: true}
	}
	client, err := s.client(ctx)
	if err != nil {
		return s.explain(m, err)
	}
	err = client.DialAndSendWithContext(ctx, message)
	if message.IsDelivered() {
		return nil // a poor goodbye changes nothing
	}
	return s.explain(m, err)
}

// message is the mail as it is sent: the same each time.
func (s *SMTP) message(m Mail) (*gomail.Msg, error) {
	to, err := netmail.ParseAddress(m.Recipient)
	if err != nil {
		return nil, errors.New("the recipient is not an address")
	}
	message := gomail.NewMsg(gomail.WithNoDefaultUserAgent())
	message.FromMailAddress(s.from)
	message.ToMailAddress(to)
	message.Subject(oneLine(m.Subject))
	message.SetDateWithValue(m.CreatedAt)
	message.SetMessageIDWithValue(m.ID + "@" + s.domain())
	message.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: no answers by machines
	message.SetBodyString(gomail.TypeTextPlain, m.Body)
	return message, nil
}

// domain is the sender's.
func (s *SMTP) domain() string {
	return s.from.Address[strings.LastIndexByte(s.from.Address, '@')+1:]
}

func (s *SMTP) client(ctx context.Context) (*gomail.Client, error) {
	config := &tls.Config{ServerName: s.host, RootCAs: s.roots, MinVersion: tls.VersionTLS12}
	options := []gomail.Option{
		gomail.WithPort(s.port), gomail.WithTimeout(s.timeout), gomail.WithHELO(s.domain()), gomail.WithTLSConfig(config),
		gomail.WithDialContextFunc(func(dialing context.Context, network, addr string) (net.Conn, error) {
			return s.connect(ctx, dialing, network, addr, config)
		}),
	}
	switch {
	case s.tls:
		options = append(options, gomail.WithSSL())
	case isLoopback(s.host):
		options = append(options, gomail.WithTLSPolicy(gomail.NoTLS))
	default:
		options = append(options, gomail.WithTLSPolicy(gomail.TLSMandatory))
	}
	if s.user != "" {
		options = append(options, gomail.WithUsername(s.user), gomail.WithPassword(s.password),
			gomail.WithOpportunisticSMTPAuth(gomail.SMTPAuthPlain, gomail.SMTPAuthLogin, gomail.SMTPAuthSCRAMSHA256))
	}
	return gomail.NewClient(s.host, options...)
}

// connect makes a connection that ends with ctx, which is the mail's; dialing
// ends when the server has said hello.
func (s *SMTP) connect(ctx, dialing context.Context, network, addr string, config *tls.Config) (net.Conn, error) {
	conn, err := s.dial(dialing, network, addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = conn.Close() }) // the mail is over, one way or the other
	if !s.tls {
		return conn, nil
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(dialing); err != nil {
		return nil, err
	}
	return secure, nil
}

// isLoopback reports whether a host is this machine.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.Unmap().IsLoopback()
}

// failure is why an attempt failed. Its text has the server's code and none of
// its words.
type failure struct {
	step  string
	code  int   // the server's; 0: it gave none
	err   error // where the server gave no code
	final bool  // there is no server that would take it
}

func (f *failure) Error() string {
	if f.code == 0 {
		return f.step + ": " + f.err.Error()
	}
	return fmt.Sprintf("%s: the server answered %d", f.step, f.code)
}

// mustMend is what a server answers to a client that has not logged in or has
// not begun TLS (RFC 4954): that is the operator's to mend.
const mustMend = 530

// permanent reports whether trying again is in vain: the server has refused
// this mail for good. A server that cannot be reached or does not let us in may
// do so later.
func permanent(err error) bool {
	f, ok := errors.AsType[*failure](err)
	return ok && (f.final || f.step != stepConnect && f.code >= 500 && f.code != mustMend)
}

const stepConnect = "connecting"

// explain turns what the library says into a failure.
func (s *SMTP) explain(m Mail, err error) error {
	f := &failure{step: stepConnect}
	if refused, ok := errors.AsType[*gomail.SendError](err); ok {
		f.step, f.code = refused.Reason.String(), refused.ErrorCode()
	}
	if answer, ok := errors.AsType[*textproto.Error](err); ok && f.code == 0 {
		f.code = answer.Code
	}
	if f.code == 0 {
		f.err = errors.New(s.mask(m, err.Error()))
	}
	return f
}

// mask takes out of an error's text what must not be in a log.
func (s *SMTP) mask(m Mail, text string) string {
	for _, secret := range []string{m.Recipient, s.password} {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "[masked]")
		}
	}
	return text
}
