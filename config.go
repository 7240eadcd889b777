package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"
	"golang.org/x/time/rate"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/billing/stripe"
	"jpintel/store"
	"jpintel/webhook"
	"jpintel/webhook/mail"
)

// Config is every environment variable, its default and its meaning.
// `jpintel config` prints it.
type Config struct {
	DB         string `env:"JPINTEL_DB" envDefault:"jpintel.db" form:"a path" doc:"the one file"`
	Addr       string `env:"JPINTEL_ADDR" envDefault:":8080" form:"host:port" doc:"public API; port 0 picks a free one"`
	AdminToken Secret `env:"JPINTEL_ADMIN_TOKEN" form:"at least 32 characters" doc:"bearer token of /v1/admin; unset: those calls answer 404"`
	MasterKey  Secret `env:"JPINTEL_MASTER_KEY" form:"id:key[,id:key…], each key 64 hex digits, no id twice" doc:"seals secrets, the first seals and all open; generated beside the file, required on Fly"`
	APIKeySalt Secret `env:"JPINTEL_API_KEY_SALT" form:"at least 16 characters" doc:"hashes API keys and customer ids, must never change; generated beside the file, required on Fly"`
	PublicURL  string `env:"JPINTEL_PUBLIC_URL" form:"https://host" doc:"this service's own address; customers' URLs may not point at it"`

	Timezone Location `env:"JPINTEL_TIMEZONE" envDefault:"Asia/Tokyo" form:"a name like Asia/Tokyo" doc:"days, and the times that customers are shown"`

	KillSwitch          bool               `env:"JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH" envDefault:"0" form:"0 or 1" doc:"1: not one request to customers' URLs; events are kept and go out afterwards"`
	Rollout             webhook.Rollout    `env:"JPINTEL_WEBHOOK_ROLLOUT" envDefault:"ga" form:"off, beta or ga" doc:"whom webhooks are open to: nobody (every webhook call answers 503, nothing is sent), paid customers with the beta flag, or every paid customer"`
	Concurrency         int                `env:"JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY" envDefault:"64" form:"a positive number" doc:"webhook requests in flight, in all"`
	EndpointConcurrency int                `env:"JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY" envDefault:"4" form:"a positive number" doc:"webhook requests in flight to one subscription"`
	Rate                int                `env:"JPINTEL_WEBHOOK_RATE" envDefault:"30" form:"a number, 0 for no limit" doc:"webhook requests a second, and as a burst, to one URL of a customer"`
	DailyCap            int                `env:"JPINTEL_WEBHOOK_DAILY_CAP" envDefault:"10000" form:"a number, 0 for no limit" doc:"webhook attempts per customer and day; the subscription that asks for one more is disabled"`
	DeadLetterLimit     int                `env:"JPINTEL_WEBHOOK_DEAD_LETTER_LIMIT" envDefault:"100" form:"a number, 0 for no limit" doc:"dead letters of a subscription before it is disabled"`
	Schedule            []webhook.Duration `env:"JPINTEL_WEBHOOK_RETRY_SCHEDULE" envDefault:"1m,5m,30m,2h,12h" form:"durations like 1m,5m,30m" doc:"waits after the first, second … failed attempt, each ±10 %; then the delivery is a dead letter"`
	Tick                webhook.Duration   `env:"JPINTEL_WEBHOOK_TICK" envDefault:"1s" form:"a duration like 30s" doc:"fallback ticker: how late work is found that nobody announced"`
	Retention           webhook.Duration   `env:"JPINTEL_WEBHOOK_RETENTION" envDefault:"30d" form:"a duration like 30d" doc:"how long finished deliveries and dead letters stay, with their attempts"`
	EventRetention      webhook.Duration   `env:"JPINTEL_EVENT_RETENTION" envDefault:"90d" form:"a duration like 90d, no shorter than JPINTEL_WEBHOOK_RETENTION" doc:"how long events stay in the feed"`
	DisableAfter        Span               `env:"JPINTEL_WEBHOOK_DISABLE_AFTER" envDefault:"off" form:"a duration like 7d, or off" doc:"a subscription that has only failed for this long is disabled"`
	WarnAfter           Span               `env:"JPINTEL_WEBHOOK_WARN_AFTER" envDefault:"1d" form:"a duration like 24h, or off" doc:"the owner of a subscription that has only failed for this long gets a mail"`
	RotationGrace       webhook.Duration   `env:"JPINTEL_WEBHOOK_ROTATION_GRACE" envDefault:"1h" form:"a duration like 1h" doc:"how long a replaced signing secret goes on signing beside the new one"`
	Brand               string             `env:"JPINTEL_WEBHOOK_BRAND" envDefault:"Jpintel" form:"letters and digits" doc:"header names (X-Jpintel-Signature) and User-Agent"`
	Ports               []uint16           `env:"JPINTEL_WEBHOOK_PORTS" envDefault:"443,8443" form:"port numbers, comma" doc:"ports that customers' URLs may have"`
	AllowCIDRs          []netip.Prefix     `env:"JPINTEL_WEBHOOK_ALLOW_CIDRS" form:"networks like 127.0.0.0/8, comma" doc:"tests and development only: addresses let through although they are not public; refused on Fly"`
	AllowHTTP           bool               `env:"JPINTEL_WEBHOOK_ALLOW_HTTP" envDefault:"0" form:"0 or 1" doc:"tests and development only: plain http is let through; refused on Fly"`
	Resolver            string             `env:"JPINTEL_WEBHOOK_RESOLVER" form:"host:port" doc:"DNS server for customers' names; unset: the system's"`

	ModelGateURL      string           `env:"MODELGATE_BASE_URL" form:"https://host/path, or http on this machine" doc:"the partner API that groups, model keys and limits live behind; unset: provisioning waits"`
	ModelGateKey      Secret           `env:"MODELGATE_API_KEY" form:"printable characters without spaces, set together with MODELGATE_BASE_URL" doc:"this partner's key there"`
	ModelGateTimeout  webhook.Duration `env:"MODELGATE_TIMEOUT" envDefault:"20s" form:"a duration up to 20s" doc:"the most that a request to the partner API may take"`
	ModelGateModels   []string         `env:"MODELGATE_MODELS" form:"names, comma" doc:"models of a new group"`
	BillingRetryBase  webhook.Duration `env:"JPINTEL_BILLING_RETRY_BASE" envDefault:"2s" form:"a duration like 2s" doc:"first step of the backoff between two sends of an operation; it doubles up to 15m"`
	BillingSettle     webhook.Duration `env:"JPINTEL_BILLING_SETTLE" envDefault:"390s" form:"a duration like 390s" doc:"how long after a send a look at the partner API may not conclude yet that it did not happen"`
	BillingWorkers    int              `env:"JPINTEL_BILLING_WORKERS" envDefault:"4" form:"a number from 1 to 64" doc:"operations in progress at a time, each of another customer"`
	BillingKillSwitch bool             `env:"JPINTEL_BILLING_KILL_SWITCH" envDefault:"0" form:"0 or 1" doc:"1: not one request to the partner API; what is accepted is done afterwards"`
	UsagePoll         webhook.Duration `env:"JPINTEL_USAGE_POLL" envDefault:"1m" form:"a duration like 1m" doc:"how often the partner API is asked what customers have used"`
	UsageSettle       webhook.Duration `env:"JPINTEL_USAGE_SETTLE" envDefault:"1h" form:"a duration like 1h" doc:"how long a day and its usage have to be over before they are closed and taken from the credit"`
	AttemptPrice      Price            `env:"JPINTEL_WEBHOOK_ATTEMPT_PRICE" envDefault:"0.5" form:"an amount in yen like 0.5" doc:"a webhook attempt on usage statements, from today on; nobody is charged for it"`

	StripeSecrets     Secret           `env:"JPINTEL_STRIPE_WEBHOOK_SECRETS" form:"whsec_…[,whsec_…]" doc:"signing secrets of the webhook endpoint at Stripe, two while one is replaced; unset: payment webhooks answer 404"`
	StripeLivemode    bool             `env:"JPINTEL_STRIPE_LIVEMODE" envDefault:"1" form:"0 or 1" doc:"which payment events count: 1 those of real money, 0 those of a sandbox; the others are stored and ignored"`
	BillingSweepEvery webhook.Duration `env:"JPINTEL_BILLING_SWEEP_EVERY" envDefault:"1d" form:"a duration like 1d, no shorter than 1m" doc:"how often the partner API and Stripe are held against the file"`

	StripeKey Secret `env:"JPINTEL_STRIPE_API_KEY" form:"sk_… or rk_…" doc:"fetches the payment events that never arrived: a restricted key that may read events is enough; unset: they are not fetched"`
	StripeURL string `env:"JPINTEL_STRIPE_BASE_URL" envDefault:"https://api.stripe.com" form:"https://api.stripe.com, or http on this machine" doc:"where Stripe's API is; another one is for tests"`

	APIRate int `env:"JPINTEL_API_RATE" envDefault:"20" form:"a number, 0 for no limit" doc:"API calls a second, and as a burst, per customer"`

	SMTPURL  Secret `env:"JPINTEL_SMTP_URL" form:"smtp://user:password@host:587 or smtps://user:password@host:465" doc:"mails to customers; smtp requires STARTTLS unless the host is this machine; unset: they are logged"`
	MailFrom string `env:"JPINTEL_MAIL_FROM" form:"an address like Jpintel <hooks@example.jp>, required with JPINTEL_SMTP_URL" doc:"sender of mails to customers"`

	ListenSecret Secret `env:"JPINTEL_LISTEN_SECRET" form:"whsec_ and 64 hex digits" doc:"for jpintel listen: the signing secret to verify with, out of the process list"`

	LogLevel  string `env:"JPINTEL_LOG_LEVEL" envDefault:"info" form:"debug, info, warn or error" doc:"what is logged"`
	LogFormat string `env:"JPINTEL_LOG_FORMAT" form:"json or text" doc:"unset: text on a terminal, json elsewhere"`

	Fly string `env:"FLY_APP_NAME" form:"set by Fly.io" doc:"says that this runs on Fly.io: stricter rules hold"`
}

// Secret is a value that is never printed.
type Secret string

// String hides the value.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(set)"
}

// Span is a duration that may be off, which is 0.
type Span struct{ webhook.Duration }

// UnmarshalText reads off or a duration.
func (s *Span) UnmarshalText(text []byte) error {
	if string(text) == "off" {
		s.Duration = 0
		return nil
	}
	return s.Duration.UnmarshalText(text)
}

// String writes off or the duration.
func (s Span) String() string {
	if s.Duration == 0 {
		return "off"
	}
	return s.Duration.String()
}

// Price is an exact amount that reads from its text.
type Price struct{ money.Amount }

// UnmarshalText reads an amount without a sign.
func (p *Price) UnmarshalText(text []byte) (err error) {
	p.Amount, err = money.Parse(string(text))
	return err
}

// Location is a time zone that reads from its name.
type Location struct{ *time.Location }

// UnmarshalText reads a name of the IANA database.
func (l *Location) UnmarshalText(name []byte) (err error) {
	l.Location, err = time.LoadLocation(string(name))
	return err
}

// readConfig reads the environment. Its error names the variable, the form
// that it should have, and the default.
func readConfig(getenv func(string) string) (Config, error) {
	var c Config
	values := map[string]string{}
	for _, f := range configFields() {
		if v := getenv(f.name); v != "" {
			values[f.name] = v
		}
	}
	for _, f := range configFields() { // one at a time, for an error that names one
		if err := f.check(values); err != nil {
			return c, err
		}
	}
	if err := env.ParseWithOptions(&c, env.Options{Environment: values}); err != nil {
		return c, fmt.Errorf("reading the environment: %w", err) // unreachable: every field was read alone
	}
	return c, c.validate()
}

// configField is one variable as the struct describes it.
type configField struct {
	name, byDefault, form, doc string
	index                      int
}

func configFields() []configField {
	var all []configField
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		tag := t.Field(i).Tag
		all = append(all, configField{tag.Get("env"), tag.Get("envDefault"), tag.Get("form"), tag.Get("doc"), i})
	}
	return all
}

// check reads one variable alone.
func (f configField) check(values map[string]string) error {
	field := reflect.TypeFor[Config]().Field(f.index)
	alone := reflect.New(reflect.StructOf([]reflect.StructField{field}))
	if err := env.ParseWithOptions(alone.Interface(), env.Options{Environment: values}); err != nil {
		return f.wrong(values[f.name])
	}
	return nil
}

func (f configField) wrong(value string) error {
	what := fmt.Sprintf("is %q", value)
	if reflect.TypeFor[Config]().Field(f.index).Type == reflect.TypeFor[Secret]() {
		what = "is not right"
	}
	byDefault := "unset"
	if f.byDefault != "" {
		byDefault = f.byDefault
	}
	return fmt.Errorf("%s %s: want %s (default: %s)", f.name, what, f.form, byDefault)
}

var brandForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]{0,31}$`)

// validate judges what a type alone cannot.
func (c *Config) validate() error {
	wrong := func(name string, ok bool) error {
		for _, f := range configFields() {
			if f.name == name && !ok {
				return f.wrong(fmt.Sprint(reflect.ValueOf(c).Elem().Field(f.index)))
			}
		}
		return nil
	}
	return errors.Join(
		wrong("JPINTEL_ADDR", validAddr(c.Addr)),
		wrong("JPINTEL_ADMIN_TOKEN", c.AdminToken == "" || len(c.AdminToken) >= 32),
		wrong("JPINTEL_MASTER_KEY", c.MasterKey == "" || validKeys(string(c.MasterKey), anySalt)),
		wrong("JPINTEL_API_KEY_SALT", c.APIKeySalt == "" || validKeys(anyMasterKey, string(c.APIKeySalt))),
		wrong("JPINTEL_PUBLIC_URL", c.PublicURL == "" || c.publicHost() != ""),
		wrong("JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY", c.Concurrency > 0),
		wrong("JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY", c.EndpointConcurrency > 0),
		wrong("JPINTEL_WEBHOOK_RATE", c.Rate >= 0),
		wrong("JPINTEL_WEBHOOK_DAILY_CAP", c.DailyCap >= 0),
		wrong("JPINTEL_WEBHOOK_DEAD_LETTER_LIMIT", c.DeadLetterLimit >= 0),
		wrong("JPINTEL_WEBHOOK_TICK", c.Tick > 0),
		wrong("JPINTEL_WEBHOOK_RETENTION", c.Retention > 0),
		wrong("JPINTEL_EVENT_RETENTION", c.EventRetention >= c.Retention),
		wrong("JPINTEL_WEBHOOK_BRAND", brandForm.MatchString(c.Brand)),
		wrong("JPINTEL_WEBHOOK_RESOLVER", c.Resolver == "" || validAddr(c.Resolver)),
		wrong("MODELGATE_BASE_URL", c.ModelGateURL == "" || validUpstream(c.ModelGateURL)),
		wrong("MODELGATE_API_KEY", (c.ModelGateKey == "") == (c.ModelGateURL == "") && (c.ModelGateKey == "" || modelgate.ValidAPIKey(string(c.ModelGateKey)))),
		wrong("MODELGATE_TIMEOUT", c.ModelGateTimeout > 0 && time.Duration(c.ModelGateTimeout) <= modelgate.Timeout),
		wrong("JPINTEL_BILLING_RETRY_BASE", c.BillingRetryBase > 0),
		wrong("JPINTEL_BILLING_SETTLE", c.BillingSettle > 0),
		wrong("JPINTEL_STRIPE_WEBHOOK_SECRETS", c.StripeSecrets == "" || !slices.ContainsFunc(c.stripeSecrets(), func(s string) bool { return !stripeSecretForm.MatchString(s) })),
		wrong("JPINTEL_USAGE_POLL", c.UsagePoll > 0),
		wrong("JPINTEL_USAGE_SETTLE", c.UsageSettle > 0),
		wrong("JPINTEL_BILLING_SWEEP_EVERY", time.Duration(c.BillingSweepEvery) >= time.Minute),
		wrong("JPINTEL_STRIPE_API_KEY", c.StripeKey == "" || stripe.ValidAPIKey(string(c.StripeKey))),
		wrong("JPINTEL_STRIPE_BASE_URL", validStripe(c.StripeURL)),
		wrong("JPINTEL_BILLING_WORKERS", c.BillingWorkers > 0 && c.BillingWorkers <= 64),
		wrong("JPINTEL_API_RATE", c.APIRate >= 0),
		wrong("JPINTEL_SMTP_URL", c.SMTPURL == "" || validSMTP(string(c.SMTPURL), anySender)),
		wrong("JPINTEL_MAIL_FROM", c.MailFrom == "" && c.SMTPURL == "" || validSMTP(anySMTP, c.MailFrom)),
		wrong("JPINTEL_LISTEN_SECRET", c.ListenSecret == "" || strings.HasPrefix(string(c.ListenSecret), "whsec_")),
		wrong("JPINTEL_LOG_LEVEL", strings.Contains(" debug info warn error ", " "+c.LogLevel+" ")),
		wrong("JPINTEL_LOG_FORMAT", c.LogFormat == "" || c.LogFormat == "json" || c.LogFormat == "text"),
		c.validateFly(),
	)
}

// stripeSecretForm is what Stripe's dashboard shows.
var stripeSecretForm = regexp.MustCompile(`^whsec_[A-Za-z0-9+/=_-]{16,200}$`)

// stripeSecrets are the signing secrets, one by one.
func (c *Config) stripeSecrets() []string {
	if c.StripeSecrets == "" {
		return nil
	}
	return strings.Split(string(c.StripeSecrets), ",")
}

// These stand in for one of two values where only the other's form is judged.
var (
	anyMasterKey = "any:" + strings.Repeat("0", 64)
	anySalt      = strings.Repeat("0", 16)
	anySMTP      = "smtp://localhost"
	anySender    = "any@example.jp"
)

func validKeys(master, salt string) bool {
	_, err := store.ParseKeyring(master, salt)
	return err == nil
}

func validUpstream(base string) bool {
	_, err := modelgate.CheckBaseURL(base)
	return err == nil
}

func validStripe(base string) bool {
	_, err := stripe.CheckBaseURL(base)
	return err == nil
}

func validSMTP(server, from string) bool {
	_, err := mail.NewSMTP(server, from)
	return err == nil
}

// sendMail hands a mail to the operator's SMTP server; nil where there is none.
func (c *Config) sendMail() (func(context.Context, mail.Mail) error, error) {
	if c.SMTPURL == "" {
		return nil, nil
	}
	server, err := mail.NewSMTP(string(c.SMTPURL), c.MailFrom)
	if err != nil {
		return nil, fmt.Errorf("JPINTEL_SMTP_URL or JPINTEL_MAIL_FROM: %w", err) // unreachable: the configuration was validated
	}
	return server.Send, nil
}

func validAddr(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	return err == nil && port != ""
}

// validateFly refuses on Fly what would open the operator's network.
func (c *Config) validateFly() error {
	if c.Fly == "" {
		return nil
	}
	if len(c.AllowCIDRs) > 0 || c.AllowHTTP {
		return errors.New("JPINTEL_WEBHOOK_ALLOW_CIDRS and JPINTEL_WEBHOOK_ALLOW_HTTP are for tests and development: not on Fly (FLY_APP_NAME is set)")
	}
	return nil
}

func (c *Config) publicHost() string {
	u, err := url.Parse(c.PublicURL)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return ""
	}
	return u.Hostname()
}

// ownHosts are the names that this service is reached by.
func (c *Config) ownHosts() []string {
	var hosts []string
	if h := c.publicHost(); h != "" {
		hosts = append(hosts, h)
	}
	if c.Fly != "" {
		hosts = append(hosts, c.Fly+".fly.dev")
	}
	return hosts
}

func (c *Config) guard() *webhook.Guard {
	return webhook.NewGuard(webhook.GuardOptions{
		Ports: c.Ports, AllowCIDRs: c.AllowCIDRs, AllowHTTP: c.AllowHTTP, OwnHosts: c.ownHosts(), Resolver: c.Resolver,
	})
}

// callRate is how many API calls a second a customer may make.
func (c *Config) callRate() rate.Limit {
	if c.APIRate == 0 {
		return rate.Inf
	}
	return rate.Limit(c.APIRate)
}

func (c *Config) schedule() []time.Duration {
	var all []time.Duration
	for _, d := range c.Schedule {
		all = append(all, time.Duration(d))
	}
	return all
}

// keyring returns the keys from the environment, or those in the 0600 file
// beside the database, which it makes where there is none. warning is for the
// operator.
func (c *Config) keyring() (keys *store.Keyring, warning string, err error) {
	master, salt := string(c.MasterKey), string(c.APIKeySalt)
	if c.Fly != "" && (master == "" || salt == "") {
		return nil, "", errors.New("JPINTEL_MASTER_KEY and JPINTEL_API_KEY_SALT are required on Fly: fly secrets set JPINTEL_MASTER_KEY=k1:$(openssl rand -hex 32) JPINTEL_API_KEY_SALT=$(openssl rand -hex 32)")
	}
	if master == "" || salt == "" {
		path := c.DB + ".keys"
		fromFile, err := keysFile(path)
		if err != nil {
			return nil, "", err
		}
		if master == "" {
			master = fromFile["JPINTEL_MASTER_KEY"]
		}
		if salt == "" {
			salt = fromFile["JPINTEL_API_KEY_SALT"]
		}
		warning = "keys are read from " + path + ", beside the database that they protect: set JPINTEL_MASTER_KEY and JPINTEL_API_KEY_SALT, and keep a copy elsewhere"
	}
	keys, err = store.ParseKeyring(master, salt)
	if err != nil {
		return nil, "", fmt.Errorf("JPINTEL_MASTER_KEY or JPINTEL_API_KEY_SALT: %w", err)
	}
	return keys, warning, nil
}

// keysFile reads the generated keys, and generates them the first time.
func keysFile(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeKeysFile(path); err != nil {
			return nil, fmt.Errorf("making keys: %w", err)
		}
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("reading keys: %w", err)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = value
	}
	return values, nil
}

// makeKeysFile lays the file under a name of its own, which it gives up for the
// right one when it is complete: another process finds all of it or nothing,
// and the first of several wins.
func makeKeysFile(path string) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".") // with mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	_, err = fmt.Fprintf(file, "JPINTEL_MASTER_KEY=k1:%s\nJPINTEL_API_KEY_SALT=%s\n", randomHex(), randomHex())
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Link(file.Name(), path); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func randomHex() string {
	random := make([]byte, 32)
	rand.Read(random) // never fails
	return hex.EncodeToString(random)
}

// print writes every variable with its value, default and meaning.
func (c *Config) print(w io.Writer, asJSON bool) error {
	type variable struct {
		Name    string `json:"name"`
		Value   string `json:"value"`
		Default string `json:"default"`
		Form    string `json:"form"`
		Meaning string `json:"meaning"`
	}
	var all []variable
	for _, f := range configFields() {
		value := reflect.ValueOf(c).Elem().Field(f.index)
		text := fmt.Sprint(value.Interface())
		if value.Kind() == reflect.Slice {
			text = strings.ReplaceAll(strings.Trim(text, "[]"), " ", ",")
		}
		all = append(all, variable{f.name, text, f.byDefault, f.form, f.doc})
	}
	if asJSON {
		return printJSON(w, store.Page[variable]{Data: all})
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "VARIABLE\tVALUE\tDEFAULT\tMEANING")
	for _, v := range all {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", v.Name, v.Value, v.Default, v.Meaning)
	}
	return table.Flush()
}
