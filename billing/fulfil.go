package billing

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"jpintel/billing/stripe"
	"jpintel/store"
	"jpintel/webhook"
)

// applyFunc is what turns the fact that an event tells into what follows from it.
type applyFunc func(context.Context, *store.Tx, *stripe.Event) (applied, error)

const (
	// maxEventAttempts is how often a payment event is tried by itself: for some
	// ten minutes. A cause that lasts longer is one for people.
	maxEventAttempts = 10
	// maxEventError is how much of an error is kept, in bytes.
	maxEventError = 500
)

// StepPayment works on the payment event that has waited longest, and reports
// whether there was one. What follows from it and what has become of it are one
// transaction. One that fails leaves nothing behind and waits for its next turn,
// and in the end for an operator: the others go on.
func (e *Engine) StepPayment(ctx context.Context) (worked bool, err error) {
	if event, err := dueEvent(e.DB.Reader(ctx), time.Now()); err != nil || event == nil {
		return false, err
	}
	var event *PaymentEvent
	err = e.DB.Write(ctx, func(tx *store.Tx) (err error) {
		if event, err = dueEvent(tx, tx.Now); err != nil || event == nil {
			return err
		}
		if err := e.fulfil(ctx, tx, event); err != nil {
			return eventError{err}
		}
		return nil
	})
	failed, ok := errors.AsType[eventError](err)
	if !ok || store.CodeOf(err) == store.CodeUnavailable || ctx.Err() != nil { // the file or a stop, which are not the event's
		return err == nil && event != nil, err
	}
	return true, e.failEvent(ctx, event, failed.err)
}

// eventError is an error that an event has met, and not the file.
type eventError struct{ err error }

func (e eventError) Error() string { return e.err.Error() }
func (e eventError) Unwrap() error { return e.err }

// fulfil has what an event says come about, and notes what that was.
func (e *Engine) fulfil(ctx context.Context, tx *store.Tx, event *PaymentEvent) error {
	a, err := e.consequences(ctx, tx, event)
	if err != nil {
		return err
	}
	if a.status == EventFailed {
		return errors.New(a.reason)
	}
	return event.settle(tx, a, e.nextEventTry(a.status, event.AttemptCount+1, tx.Now))
}

// consequences has what an event says come about. A panic of it is its error: the
// next start would meet it again.
func (e *Engine) consequences(ctx context.Context, tx *store.Tx, event *PaymentEvent) (a applied, err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("panic: %v", what)
			e.Log.Error("payment_event_panicked", "event_id", event.EventID, "stack", string(debug.Stack()))
		}
	}()
	envelope, err := stripe.ParseEnvelope(event.payload)
	if err != nil {
		return a, err // unreachable: it was read before it was stored
	}
	if reason := e.Rules.foreign(envelope); reason != "" {
		e.Log.Warn("payment_event_ignored", "event_id", event.EventID, "type", event.Type, "reason", reason)
		return applied{status: EventIgnored, reason: reason}, nil
	}
	told, err := envelope.Fact()
	if err != nil {
		return a, err
	}
	if told.Payment == nil && told.Charge == nil && told.Refund == nil && told.Dispute == nil {
		return applied{status: EventIgnored, reason: "nothing follows from it for billing"}, nil
	}
	if e.apply != nil {
		return e.apply(ctx, tx, told)
	}
	return e.Rules.applyPayment(ctx, tx, told)
}

// nextEventTry is when an event is tried again by itself after so many attempts;
// zero: not.
func (e *Engine) nextEventTry(status EventStatus, attempts int, now time.Time) time.Time {
	if status == EventReceived || status == EventFailed && attempts < maxEventAttempts {
		return now.Add(max(e.backoff(attempts), e.retryBase()))
	}
	return time.Time{}
}

// failEvent notes why an attempt has come to nothing.
func (e *Engine) failEvent(ctx context.Context, event *PaymentEvent, cause error) error {
	reason := webhook.Mask(cause.Error())
	reason = strings.ToValidUTF8(reason[:min(len(reason), maxEventError)], "")
	var next time.Time
	if err := e.DB.Write(context.WithoutCancel(ctx), func(tx *store.Tx) error {
		next = e.nextEventTry(EventFailed, event.AttemptCount+1, tx.Now)
		return event.settle(tx, applied{status: EventFailed, reason: reason}, next)
	}); err != nil {
		return err
	}
	if next.IsZero() {
		e.Log.Error(paymentNeedsAttention, "event_id", event.EventID, "type", event.Type, "attempts", event.AttemptCount+1, "error", reason, "code", "webhook_received_processing_failed")
	} else {
		e.Log.Warn("payment_event_failed", "event_id", event.EventID, "type", event.Type, "attempts", event.AttemptCount+1, "error", reason)
	}
	return nil
}
