package webhook

import (
	"context"
	"fmt"
	"time"

	"jpintel/store"
)

// PingAnswer is what came of a test ping.
type PingAnswer struct {
	OK              bool     `json:"ok"`
	EventID         string   `json:"event_id"` // of this ping only: it is in no feed
	Status          *int     `json:"status"`   // HTTP; null: no answer
	DurationMS      int64    `json:"duration_ms"`
	ErrorCategory   Category `json:"error_category"`
	ErrorDetail     string   `json:"error_detail"`
	ResponseExcerpt string   `json:"response_excerpt"`
	RemoteAddr      string   `json:"remote_addr"`
}

// errKillSwitch is the answer of a test ping while nothing is sent.
var errKillSwitch = store.Errorf(store.CodeUnavailable, "webhook deliveries are stopped by the operator at the moment")

// Ping sends one signed webhook.test to a subscription, at once and through the
// sender that deliveries take, also while the subscription is disabled. It
// leaves no delivery and does not touch the streak.
func (s *Service) Ping(ctx context.Context, r SubscriptionRequest) (PingAnswer, error) {
	if s.Sender.Kill.State().On {
		return PingAnswer{}, errKillSwitch
	}
	seq, err := ownSubscription(s.DB.Reader(ctx), r)
	if err != nil {
		return PingAnswer{}, err
	}
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
		ErrorDetail: res.Detail, ResponseExcerpt: res.Excerpt, RemoteAddr: res.RemoteAddr,
	}
	if res.Status != 0 {
		answer.Status = &res.Status
	}
	return answer, nil
}

// sendPing makes a request outside of the queue. It counts for the day.
func (s *Service) sendPing(ctx context.Context, w *work, now time.Time) (Result, error) {
	day, ok, err := s.Cap.take(ctx, w.target.customerID, now)
	if err != nil {
		return Result{}, err
	}
	if !ok {
		return Result{}, s.Cap.exhausted(store.CodeRateLimited)
	}
	rec := record{settled: settled{work: w}, result: s.Sender.Send(ctx, w.request())}
	if !rec.attempted() {
		s.Cap.release(w.target.customerID, day)
	} else if err := s.DB.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
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
