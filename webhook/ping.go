package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"

	"jpintel/store"
)

// PingAnswer is what came of a test ping.
type PingAnswer struct {
	OK              bool          `json:"ok"`
	EventID         string        `json:"event_id"` // of this ping only: it is in no feed
	Status          *int          `json:"status"`   // HTTP; null: no answer
	DurationMS      int64         `json:"duration_ms"`
	ErrorCategory   Category      `json:"error_category"`
	ErrorDetail     string        `json:"error_detail"`
	BlockedReason   BlockedReason `json:"blocked_reason"` // the guard's word; "": it has let the request through
	ResponseExcerpt string        `json:"response_excerpt"`
	RemoteAddr      string        `json:"remote_addr"`
}

// maxPings is how many test pings there may be at a time.
const maxPings = 8

// pings are the test pings that are under way. They hold requests outside of the
// queue's slots, so they are few.
type pings struct {
	mu   sync.Mutex
	subs map[int64]bool
}

// begin lets one ping of a subscription start; end it when it is done.
func (p *pings) begin(subSeq int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.subs[subSeq] {
		return store.Errorf(store.CodeRateLimited, "a test of this subscription is under way: wait for its answer")
	}
	if len(p.subs) >= maxPings {
		return store.Errorf(store.CodeRateLimited, "too many tests are under way: try again in a few seconds")
	}
	if p.subs == nil {
		p.subs = map[int64]bool{}
	}
	p.subs[subSeq] = true
	return nil
}

func (p *pings) end(subSeq int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, subSeq)
}

// errKillSwitch is the answer of a test ping while nothing is sent.
var errKillSwitch = store.Errorf(store.CodeUnavailable, "webhook deliveries are stopped by the operator at the moment")

// Ping sends one signed webhook.test to a subscription, at once and through the
// sender that deliveries take, also while the subscription is disabled. It
// leaves no delivery and does not touch the streak.
func (s *Service) Ping(ctx context.Context, r SubscriptionRequest) (PingAnswer, error) {
	if s.Sender.Kill.stopped() {
		return PingAnswer{}, errKillSwitch
	}
	seq, err := ownSubscription(s.DB.Reader(ctx), r)
	if err != nil {
		return PingAnswer{}, err
	}
	if err := s.pings.begin(seq); err != nil {
		return PingAnswer{}, err
	}
	defer s.pings.end(seq)
	now := time.Now()
	t, err := readTarget(s.DB.Reader(ctx), s.DB.Keys, seq, now)
	if err != nil {
		return PingAnswer{}, err
	}
	var envelope Envelope
	if err := s.DB.Reader(ctx).QueryRow(`SELECT envelope FROM webhook_subscriptions WHERE sub_seq = $1`, seq).Scan(&envelope); err != nil {
		return PingAnswer{}, fmt.Errorf("reading subscription: %w", err)
	}
	event := storedEvent{
		id: store.NewID("evt"), typ: TypeTest, customer: t.customerID, subjectType: catalogue[TypeTest].Subject, subjectID: t.subscriptionID,
		occurredAtMS: now.UnixMilli(), createdAt: now.In(s.DB.Location).Format(createdAtLayout), schemaVersion: schemaVersion, data: []byte(`{}`),
	}
	w := work{deliveryID: store.NewID("dlv"), envelope: envelope, event: event, target: t}
	res, err := s.sendPing(ctx, &w, now)
	if err != nil {
		return PingAnswer{}, err
	}
	answer := PingAnswer{
		OK: res.OK(), EventID: event.id, DurationMS: res.Duration.Milliseconds(), ErrorCategory: res.Category,
		ErrorDetail: res.Detail, BlockedReason: res.Reason, ResponseExcerpt: res.Excerpt, RemoteAddr: res.RemoteAddr,
	}
	if res.Status != 0 {
		answer.Status = &res.Status
	}
	return answer, nil
}

// sendPing makes a request outside of the queue. It counts for the day. A caller
// that goes away does not end it: the receiver may have it already.
func (s *Service) sendPing(ctx context.Context, w *work, now time.Time) (Result, error) {
	ctx = context.WithoutCancel(ctx)
	day, ok, err := s.Cap.take(ctx, w.target.customerID, now)
	if err != nil {
		return Result{}, err
	}
	if !ok {
		return Result{}, s.Cap.exhausted(store.CodeRateLimited, now)
	}
	rec := record{settled: settled{work: w}, result: s.Sender.Send(ctx, w.request())}
	if !rec.attempted() {
		s.Cap.release(w.target.customerID, day)
	} else if err := s.DB.Write(ctx, func(tx *store.Tx) error {
		counted := dailyAttempts{}
		counted.add(w.target.customerID, day)
		return counted.write(tx)
	}); err != nil {
		return Result{}, err
	}
	if rec.result.Interrupted {
		return Result{}, errKillSwitch
	}
	return rec.result, nil
}
