package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/julienschmidt/httprouter"

	"jpintel/billing"
	"jpintel/billing/ledger"
	"jpintel/store"
	"jpintel/webhook"
	"jpintel/webhook/mail"
	"jpintel/webhook/programs"
)

// The limits of the HTTP server towards slow and wordy clients.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 30 * time.Second
	writeTimeout      = 60 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// access says who may call a route.
type access int

const (
	open     access = iota // anybody
	customer               // whoever has an API key
	paid                   // a customer on the paid tier
	hooks                  // a customer that webhooks are open to: on the paid tier, and the rollout lets it in
	admin                  // the operator
)

// route is one call of the API.
type route struct {
	method, path string
	who          access
	handle       handler
}

// api is everything that serves HTTP.
type api struct {
	db         *store.DB
	log        *slog.Logger
	webhooks   *webhook.Service
	programs   *programs.Service
	worker     *webhook.Worker
	mails      *mail.Sender
	billing    *billing.Service
	operations *billing.Worker
	journal    ledger.Journal
	admin      [sha256.Size]byte // of the token, so that comparing takes no notice of lengths
	hasAdmin   bool
	tick       time.Duration
	calls      *limiters // by customer
	guesses    *limiters // wrong keys and tokens, by address
	fly        bool      // Fly's proxy is in front
	rollout    webhook.Rollout
}

// routes is the whole surface. Every route is in docs/openapi.yaml; a test
// holds the two against each other.
func (a *api) routes() []route {
	w, p, b := a.webhooks, a.programs, a.billing
	return []route{
		{"GET", "/healthz", open, endpoint(a.health)},
		{"GET", "/readyz", open, endpoint(a.ready)},

		{"POST", "/v1/webhooks/subscribe", hooks, endpoint(w.Subscribe)},
		{"GET", "/v1/webhooks/subscriptions", hooks, endpoint(w.Subscriptions)},
		{"GET", "/v1/webhooks/subscriptions/:id", hooks, endpoint(w.Subscription)},
		{"DELETE", "/v1/webhooks/subscriptions/:id", hooks, endpoint(w.Unsubscribe)},
		{"PATCH", "/v1/webhooks/subscriptions/:id", hooks, endpoint(w.Change)},
		{"POST", "/v1/webhooks/subscriptions/:id/disable", hooks, endpoint(w.Disable)},
		{"POST", "/v1/webhooks/subscriptions/:id/enable", hooks, endpoint(w.Enable)},
		{"POST", "/v1/webhooks/subscriptions/:id/rotate-secret", hooks, endpoint(w.RotateSecret)},
		{"POST", "/v1/webhooks/subscriptions/:id/rotate-secret/finish", hooks, endpoint(w.FinishRotation)},
		{"POST", "/v1/webhooks/test/:id", hooks, endpoint(w.Ping)},
		{"GET", "/v1/webhooks/opt-out", hooks, endpoint(w.OptOut)},
		{"PUT", "/v1/webhooks/opt-out", hooks, endpoint(w.StopAll)},
		{"DELETE", "/v1/webhooks/opt-out", hooks, endpoint(w.EndOptOut)},
		{"GET", "/v1/webhooks/subscriptions/:id/deliveries", hooks, endpoint(w.Deliveries)},
		{"GET", "/v1/webhooks/deliveries/:id", hooks, endpoint(w.Delivery)},
		{"POST", "/v1/webhooks/deliveries/:id/replay", hooks, endpoint(w.Replay)},
		{"POST", "/v1/webhooks/subscriptions/:id/replay", hooks, endpoint(w.ReplayAll)},
		{"GET", "/v1/webhooks/replays/:id", hooks, endpoint(w.ReplayProgress)},
		{"GET", "/v1/webhooks/policy", hooks, endpoint(w.Policy)},
		{"GET", "/v1/event-types", customer, endpoint(w.EventTypes)},
		{"GET", "/v1/event-types/:type", customer, endpoint(w.EventType)},
		{"GET", "/v1/events", paid, endpoint(w.Events)},
		{"GET", "/v1/events/:id", paid, endpoint(w.Event)},

		{"GET", "/v1/customer", customer, endpoint(a.account)},
		{"GET", "/v1/balance", customer, endpoint(a.journal.Balances)},
		{"GET", "/v1/ledger", customer, bound(a.movements)},

		{"POST", "/v1/billing/webhooks/stripe", open, endpoint(b.ReceivePayment)},
		{"GET", "/v1/usage", customer, bound(a.statement)},
		{"GET", "/v1/budget", customer, endpoint(b.Budget)},

		{"POST", "/v1/saved-filters", customer, endpoint(p.CreateSavedFilter)},
		{"GET", "/v1/saved-filters", customer, endpoint(p.ListSavedFilters)},
		{"DELETE", "/v1/saved-filters/:id", customer, endpoint(p.DeleteSavedFilter)},
		{"GET", "/v1/tracked-programs", customer, endpoint(p.ListTrackedPrograms)},
		{"PUT", "/v1/tracked-programs/:unified_id", customer, endpoint(p.TrackProgram)},
		{"DELETE", "/v1/tracked-programs/:unified_id", customer, endpoint(p.UntrackProgram)},

		{"POST", "/v1/admin/customers", admin, endpoint(a.createCustomer)},
		{"GET", "/v1/admin/customers/:id", admin, endpoint(b.Customer)},
		{"PATCH", "/v1/admin/customers/:id", admin, endpoint(w.SetDailyLimit)},
		{"POST", "/v1/admin/customers/:id/limit", admin, endpoint(b.SetLimit)},
		{"POST", "/v1/admin/customers/:id/freeze", admin, endpoint(b.Freeze)},
		{"POST", "/v1/admin/customers/:id/thaw", admin, endpoint(b.Thaw)},
		{"POST", "/v1/admin/customers/:id/delete-group", admin, endpoint(b.DeleteGroup)},
		{"POST", "/v1/admin/customers/:id/model-keys", admin, endpoint(b.ChangeKey)},
		{"POST", "/v1/admin/model-keys/:id/reveal", admin, endpoint(b.Reveal)},
		{"GET", "/v1/admin/operations", admin, endpoint(b.Operations)},
		{"GET", "/v1/admin/operations/:id", admin, endpoint(b.Record)},
		{"POST", "/v1/admin/operations/:id/retry", admin, endpoint(b.Retry)},
		{"POST", "/v1/admin/operations/:id/reconcile", admin, endpoint(b.Reconcile)},
		{"POST", "/v1/admin/operations/:id/resolve", admin, endpoint(b.Resolve)},
		{"GET", "/v1/admin/ledger", admin, endpoint(a.journal.Entries)},
		{"GET", "/v1/admin/payments/events", admin, endpoint(b.PaymentEvents)},
		{"GET", "/v1/admin/payments/events/:id", admin, endpoint(b.PaymentEvent)},
		{"POST", "/v1/admin/payments/events/:id/rerun", admin, endpoint(b.RerunPaymentEvent)},
		{"POST", "/v1/admin/payments/rerun", admin, endpoint(b.RerunPaymentEvents)},
		{"GET", "/v1/admin/sweeps", admin, endpoint(b.Sweeps)},
		{"POST", "/v1/admin/sweeps", admin, endpoint(b.SweepNow)},
		{"GET", "/v1/admin/findings", admin, endpoint(b.Findings)},
		{"POST", "/v1/admin/findings/:id/acknowledge", admin, endpoint(b.Acknowledge)},
		{"POST", "/v1/admin/customers/:id/keys", admin, endpoint(a.createKey)},
		{"PUT", "/v1/admin/programs/:unified_id", admin, endpoint(p.PutProgram)},
		{"POST", "/v1/admin/programs", admin, a.importPrograms},
		{"POST", "/v1/admin/adoptions", admin, endpoint(p.AddAdoption)},
		{"POST", "/v1/admin/exclusion-rules", admin, endpoint(p.AddExclusionRule)},
		{"POST", "/v1/admin/usage", admin, endpoint(w.AddUsage)},
		{"GET", "/v1/admin/usage", admin, bound(a.anyStatement)},
		{"POST", "/v1/admin/events", admin, endpoint(w.PublishEvent)},
	}
}

// handler wires the routes.
func (a *api) handler() http.Handler {
	router := httprouter.New()
	router.RedirectTrailingSlash, router.RedirectFixedPath, router.HandleOPTIONS = false, false, false
	for _, r := range a.routes() {
		router.Handle(r.method, r.path, func(w http.ResponseWriter, req *http.Request, params httprouter.Params) {
			a.serve(r, &call{r: req, w: w, params: params})
		})
	}
	fail := func(err error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { writeError(&call{r: r, w: w}, a.log, err) })
	}
	router.NotFound = fail(errNoCall)
	router.MethodNotAllowed = http.HandlerFunc(methodNotAllowed)
	router.PanicHandler = a.panicked
	return a.observe(router)
}

// methodNotAllowed answers 405. The router has set Allow; it counts OPTIONS in,
// which no path has.
func methodNotAllowed(w http.ResponseWriter, _ *http.Request) {
	allowed := strings.Split(w.Header().Get("Allow"), ", ")
	allow := strings.Join(slices.DeleteFunc(allowed, func(m string) bool { return m == http.MethodOptions }), ", ")
	w.Header().Set("Allow", allow)
	_ = writeJSON(w, http.StatusMethodNotAllowed, map[string]string{"detail": "no such call: this path allows " + allow})
}

// panicked answers for a handler that has panicked: 500, and the log knows. One
// that wants the connection cut gets that.
func (a *api) panicked(w http.ResponseWriter, r *http.Request, what any) {
	if what == http.ErrAbortHandler {
		panic(what)
	}
	writeError(&call{r: r, w: w}, a.log, fmt.Errorf("panic: %v\n%s", what, debug.Stack()))
}

func (a *api) serve(r route, c *call) {
	if err := a.authorize(r.who, c); err != nil {
		writeError(c, a.log, err)
		return
	}
	if err := r.handle(c); err != nil {
		writeError(c, a.log, err)
	}
}

// authorize is the one place that decides who may call.
func (a *api) authorize(who access, c *call) error {
	if who == open {
		return nil
	}
	if who == admin && !a.hasAdmin {
		return errNoCall
	}
	if who == hooks && a.rollout == webhook.RolloutOff {
		return webhook.ErrRolloutOff // whoever asks
	}
	err := a.identify(who, c)
	if store.CodeOf(err) != store.CodeUnauthorized {
		return err
	}
	// Only wrong keys are limited: whoever has the right one is let in, also
	// from an address that a stranger guesses from.
	if wait := a.guesses.take(clientAddress(c.r, a.fly), time.Now()); wait > 0 {
		return tooMany(wait, "too many wrong keys from this address")
	}
	return err
}

// errNoCall is the answer to a path that leads nowhere, and to the operator's
// calls where no token is configured.
var errNoCall = store.Errorf(store.CodeNotFound, "no such call")

// identify finds out who calls, and whether that is enough.
func (a *api) identify(who access, c *call) error {
	if who == admin {
		return a.identifyAdmin(c.r)
	}
	caller, err := a.db.Authenticate(c.r.Context(), c.r.Header.Get("X-API-Key"))
	if err != nil {
		return err
	}
	c.customer = caller.CustomerID
	if o, ok := c.w.(*observed); ok {
		o.customer = caller.CustomerID
	}
	if wait := a.calls.take(caller.CustomerID, time.Now()); wait > 0 {
		return tooMany(wait, "too many calls")
	}
	switch {
	case who == hooks:
		return a.rollout.Admit(caller)
	case who == paid && caller.Tier != store.TierPaid:
		return webhook.ErrFreeTier
	}
	return nil
}

func (a *api) identifyAdmin(r *http.Request) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	ok := strings.EqualFold(scheme, "Bearer") // RFC 9110, section 11.1
	given := sha256.Sum256([]byte(token))
	if !ok || subtle.ConstantTimeCompare(given[:], a.admin[:]) != 1 {
		return store.Errorf(store.CodeUnauthorized, "missing or wrong admin token: send it as Authorization: Bearer …")
	}
	return nil
}

// requestID is the form in which a caller's own request id is taken over.
var requestID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// observe gives every request an id and logs it with its outcome.
func (a *api) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		id := r.Header.Get("X-Request-Id")
		if !requestID.MatchString(id) {
			id = store.NewID("req")
		}
		w.Header().Set("X-Request-Id", id)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		o := &observed{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(o, r.WithContext(store.WithRequestID(r.Context(), id)))
		args := []any{"request_id", id, "method", r.Method, "path", logPath(r.URL.Path), "status", o.status, "duration_ms", time.Since(started).Milliseconds()}
		if o.customer != "" {
			args = append(args, "customer_id_hash", a.db.Keys.HashID(o.customer))
		}
		level := slog.LevelInfo
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			level = slog.LevelDebug // several a minute, for ever
		}
		a.log.Log(r.Context(), level, "http_request", args...)
	})
}

// maxLogPath is how much of a path is logged: strangers choose it.
const maxLogPath = 200

// logPath is a path as it may be logged: without a customer's id, and without
// what looks like a key.
func logPath(path string) string {
	const customers = "/v1/admin/customers/"
	if rest, ok := strings.CutPrefix(path, customers); ok {
		_, after, _ := strings.Cut(rest, "/")
		path = customers + ":id/" + after
	}
	path = webhook.Mask(path)
	return strings.ToValidUTF8(path[:min(len(path), maxLogPath)], "")
}

// observed remembers what is worth a log line.
type observed struct {
	http.ResponseWriter
	status   int
	customer string
}

// WriteHeader implements http.ResponseWriter.
func (o *observed) WriteHeader(status int) {
	o.status = status
	o.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (o *observed) Unwrap() http.ResponseWriter { return o.ResponseWriter }

type nothing struct{}

// health is the answer of the health checks.
type health struct {
	Status     string                  `json:"status"` // ok
	Version    string                  `json:"version"`
	KillSwitch webhook.KillSwitchState `json:"kill_switch"`
	Rollout    webhook.Rollout         `json:"rollout"`
}

// health says that the process and its file answer.
func (a *api) health(ctx context.Context, _ nothing) (health, error) {
	if _, err := store.ReadControl(a.db.Reader(ctx)); err != nil {
		return health{}, &store.Error{Code: store.CodeUnavailable, Message: "the database does not answer", Err: err}
	}
	return health{"ok", version, a.worker.KillSwitch(), a.rollout}, nil
}

// ready says that writes are committed and the worker goes round.
func (a *api) ready(ctx context.Context, _ nothing) (health, error) {
	if err := a.db.Write(ctx, func(*store.Tx) error { return nil }); err != nil {
		return health{}, &store.Error{Code: store.CodeUnavailable, Message: "the database cannot be written", Err: err}
	}
	if since := time.Since(a.worker.LastTurn()); since > 10*time.Second+2*a.tick {
		return health{}, store.Errorf(store.CodeUnavailable, "the worker has not gone round for %s", since.Round(time.Second))
	}
	return health{"ok", version, a.worker.KillSwitch(), a.rollout}, nil
}
