package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"time"

	"jpintel/store"
)

// maxSubscriptions is how many active subscriptions a paid customer may have.
const maxSubscriptions = 20

const maxDescription = 256 // bytes

// SubscribeRequest registers a URL.
type SubscribeRequest struct {
	CustomerID     string   `bind:"customer" json:"-"`
	IdempotencyKey string   `header:"Idempotency-Key" json:"-"` // optional
	URL            string   `json:"url"`
	Events         []Type   `json:"events"`
	Filter         Filter   `json:"filter"`
	Envelope       Envelope `json:"envelope"`
	Description    string   `json:"description"`
}

// SubscribeAnswer is the one time that the secret is shown.
type SubscribeAnswer struct {
	SubscriptionID  string    `json:"subscription_id"`
	SigningSecret   string    `json:"signing_secret"`
	URL             string    `json:"url"` // canonical: what is stored and called
	Events          []Type    `json:"events"`
	Filter          Filter    `json:"filter"`
	Envelope        Envelope  `json:"envelope"`
	Description     string    `json:"description"`
	CreatedAt       time.Time `json:"created_at"`
	SecretShownOnce bool      `json:"secret_shown_once"`
	Warnings        []string  `json:"warnings"`
}

// HTTPStatus is 201 Created.
func (SubscribeAnswer) HTTPStatus() int { return 201 }

// Subscribe registers a URL for a paid customer. It resolves the host's name
// and judges its addresses, so that the customer learns at once; the sender
// judges again at each request. The same IdempotencyKey again is the same
// creation: its answer, secret included, whatever has become of the
// subscription since.
func (s *Service) Subscribe(ctx context.Context, r SubscribeRequest) (SubscribeAnswer, error) {
	once, err := r.once()
	if err != nil {
		return SubscribeAnswer{}, err
	}
	if first, known, err := store.Recall[SubscribeAnswer](ctx, s.DB, once); err != nil || known {
		return first, err
	}
	sub, err := s.check(r)
	if err != nil {
		return SubscribeAnswer{}, err
	}
	warnings, err := s.checkDestination(ctx, sub.URL)
	if err != nil {
		return SubscribeAnswer{}, err
	}
	var answer SubscribeAnswer
	err = s.DB.Write(ctx, func(tx *store.Tx) (err error) {
		answer, err = store.DoOnce(tx, once, func() (SubscribeAnswer, error) {
			secret := newSecret()
			err := s.insert(tx, &sub, secret)
			return sub.created(secret, warnings), err
		})
		return err
	})
	return answer, err
}

func (r SubscribeRequest) once() (store.Once, error) {
	if r.IdempotencyKey == "" {
		return store.Once{}, nil
	}
	once, err := store.NewOnce("subscribe "+r.CustomerID, r.IdempotencyKey, r)
	once.Secret = true
	return once, err
}

// created is the answer to who has just registered the subscription.
func (sub *Subscription) created(secret string, warnings []string) SubscribeAnswer {
	return SubscribeAnswer{
		SubscriptionID: sub.SubscriptionID, SigningSecret: secret, URL: sub.URL, Events: sub.Events, Filter: sub.Filter,
		Envelope: sub.Envelope, Description: sub.Description, CreatedAt: sub.CreatedAt, SecretShownOnce: true, Warnings: warnings,
	}
}

// check judges what the customer sent; no network and no file.
func (s *Service) check(r SubscribeRequest) (Subscription, error) {
	sub := Subscription{customerID: r.CustomerID, Filter: r.Filter, Envelope: r.Envelope, Description: r.Description}
	if r.URL == "" {
		return sub, store.Errorf(store.CodeInvalid, "url: required")
	}
	var err error
	if sub.URL, err = s.Guard.CheckURL(r.URL); err != nil {
		return sub, urlError(err)
	}
	if sub.Events, err = validateTypes(r.Events); err != nil {
		return sub, err
	}
	if sub.Filter == nil {
		sub.Filter = Filter{}
	}
	if err := sub.Filter.validate(sub.Events); err != nil {
		return sub, err
	}
	if sub.Envelope == "" {
		sub.Envelope = EnvelopeV1
	}
	if sub.Envelope != EnvelopeV1 && sub.Envelope != EnvelopeV2 {
		return sub, store.Errorf(store.CodeInvalid, "envelope: want v1 or v2")
	}
	if len(sub.Description) > maxDescription {
		return sub, store.Errorf(store.CodeInvalid, "description: at most %d bytes", maxDescription)
	}
	return sub, nil
}

// urlError is the guard's refusal as an answer: its words, and its one word.
func urlError(err error) error {
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok {
		return err
	}
	if refusal.Reason == BlockedHTTPSRequired { // the one text that is promised word for word
		return store.Errorf(store.CodeInvalid, "https required")
	}
	return store.Errorf(store.CodeInvalid, "url: %s (%s)", refusal.Detail, refusal.Reason)
}

// checkDestination resolves the URL's host. A name that does not exist is
// refused; one that cannot be looked up just now is accepted with a warning.
func (s *Service) checkDestination(ctx context.Context, canonical string) (warnings []string, err error) {
	u, err := url.Parse(canonical)
	if err != nil {
		return nil, fmt.Errorf("parsing a checked URL: %w", err) // unreachable: CheckURL wrote it
	}
	port, err := portOf(u)
	if err != nil {
		return nil, fmt.Errorf("parsing a checked URL: %w", err) // unreachable: as above
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	_, err = s.Guard.Resolve(ctx, u.Hostname(), port)
	if refusal, ok := errors.AsType[*Refusal](err); ok {
		return nil, urlError(refusal)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return nil, store.Errorf(store.CodeInvalid, "url: the host name %s does not resolve", u.Hostname())
	}
	warnings = []string{}
	if err != nil {
		warnings = append(warnings, "the host name could not be looked up just now; deliveries will fail until it resolves")
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil && u.Scheme == "https" {
		warnings = append(warnings, fmt.Sprintf("%s is an address: the TLS certificate must be valid for it", addr))
	}
	return warnings, nil
}

// insert adds a subscription; its customer's rights and the limit are judged
// in the transaction, so they are exact under concurrency.
func (s *Service) insert(tx *store.Tx, sub *Subscription, secret string) error {
	if err := s.entitled(tx, sub.customerID); err != nil {
		return err
	}
	events, filter, err := sub.encode()
	if err != nil {
		return err
	}
	sub.SubscriptionID, sub.CreatedAt = tx.NewID("sub"), tx.Local()
	err = tx.QueryRow(`
		INSERT INTO webhook_subscriptions (subscription_id, customer_id, url, events, filter, envelope, description, since_seq, created_at_ms)
		VALUES ($1, $2, $3, $4, $5, $6, $7, (SELECT COALESCE(MAX(seq), 0) FROM outbox_events), $8) RETURNING sub_seq`,
		sub.SubscriptionID, sub.customerID, sub.URL, events, filter, sub.Envelope, sub.Description, tx.NowMS()).Scan(&sub.seq)
	if err != nil {
		return fmt.Errorf("adding subscription: %w", err)
	}
	return addSecret(tx, sub, 1, secret)
}

func (sub *Subscription) encode() (events, filter string, err error) {
	e, err := marshal(sub.Events)
	if err != nil {
		return "", "", err
	}
	f, err := marshal(map[string][]string(sub.Filter))
	return string(e), string(f), err
}

// entitled refuses a customer that may not have one more active subscription.
func (s *Service) entitled(tx *store.Tx, customer string) error {
	c, err := store.GetCustomer(tx, customer)
	if err != nil {
		return err
	}
	if c.Tier != store.TierPaid {
		return ErrFreeTier
	}
	if c.OptedOutAt != nil {
		return errOptedOut
	}
	var active int
	if err := tx.QueryRow(`SELECT COUNT(*) FROM webhook_subscriptions WHERE customer_id = $1 AND disabled_at_ms IS NULL`, customer).Scan(&active); err != nil {
		return fmt.Errorf("counting subscriptions: %w", err)
	}
	if active >= maxSubscriptions {
		return store.Errorf(store.CodeConflict, "subscription limit %d reached for tier=%s", maxSubscriptions, c.Tier)
	}
	return nil
}

// ErrFreeTier turns away who has not bought webhooks and the feed.
var ErrFreeTier = store.Errorf(store.CodeForbidden, "webhook subscriptions not available on free tier")

// errOptedOut is the answer to who has stopped all webhooks.
var errOptedOut = store.Errorf(store.CodeConflict, "all webhooks are stopped for this customer: DELETE /v1/webhooks/opt-out first")

func secretContext(subscriptionID string, version int64) string {
	return fmt.Sprintf("signing secret %s %d", subscriptionID, version)
}

func addSecret(tx *store.Tx, sub *Subscription, version int64, secret string) error {
	_, err := tx.Exec(`
		INSERT INTO webhook_secrets (sub_seq, version, signing_secret_hash, sealed, created_at_ms) VALUES ($1, $2, $3, $4, $5)`,
		sub.seq, version, tx.Keys().Hash(secret), tx.Keys().Seal([]byte(secret), secretContext(sub.SubscriptionID, version)), tx.NowMS())
	if err != nil {
		return fmt.Errorf("adding signing secret: %w", err)
	}
	return nil
}
