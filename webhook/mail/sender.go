package mail

import (
	"context"
	"log/slog"
	"time"

	"jpintel/store"
)

// schedule is the waits after the first, second … attempt: a little over three
// days. Then the mail is failed.
var schedule = []time.Duration{
	time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour,
	12 * time.Hour, 12 * time.Hour, 12 * time.Hour, 12 * time.Hour, 12 * time.Hour, 12 * time.Hour,
}

// wait is how long after the beginning of attempt n the next one is due. After
// the last one that is for a crash only.
func wait(n int) time.Duration { return schedule[min(n, len(schedule))-1] }

const (
	// stopWait is how long a stop waits for the mail that is under way.
	stopWait = 5 * time.Second
	// maxLastTries is how often, a second apart, a stop tries to write an
	// outcome to a file that cannot be written.
	maxLastTries = 3
)

// Sender sends the mails of a file one after the other, in a goroutine of its
// own: an SMTP server that hangs holds up mails and nothing else.
//
//	Queue ──commit, Wake──▶ Run: due ─▶ begin (attempt, next time) ─▶ Send ─▶ finish
type Sender struct {
	DB  *store.DB
	Log *slog.Logger
	// Send hands a mail to an SMTP server: SMTP.Send. nil: there is none, and
	// mails are logged.
	Send func(context.Context, Mail) error
	Tick time.Duration // how late a mail is found that nobody announced, or that is due again

	wake chan struct{}
}

// NewSender returns a sender; Run starts it.
func NewSender(db *store.DB, log *slog.Logger, send func(context.Context, Mail) error, tick time.Duration) *Sender {
	return &Sender{DB: db, Log: log, Send: send, Tick: tick, wake: make(chan struct{}, 1)}
}

// Wake says that a mail was committed. It never waits.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends, and then has stopWait for the mail under way. One
// that is cut off is due again at its next time.
func (s *Sender) Run(ctx context.Context) {
	sending, cutOff := context.WithCancel(context.WithoutCancel(ctx))
	defer cutOff()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(stopWait, cutOff) })()
	tick := time.NewTicker(s.Tick)
	defer tick.Stop()
	for {
		s.sendDue(ctx, sending)
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
	}
}

// sendDue sends what is due. What could not be read or written is for the next
// tick.
func (s *Sender) sendDue(ctx, sending context.Context) {
	for more := true; more && ctx.Err() == nil; {
		m, err := due(s.DB.Reader(ctx), time.Now())
		if more = m != nil && err == nil; more {
			err = s.sendOne(sending, m)
		}
		if err != nil && ctx.Err() == nil {
			s.Log.Error("mails_not_sent", "error", err)
			return
		}
	}
}

func (s *Sender) sendOne(ctx context.Context, m *Mail) error {
	if s.Send == nil || m.Recipient == "" {
		return s.logInstead(ctx, m)
	}
	if err := s.DB.WriteBackground(ctx, m.begin); err != nil {
		return err // nothing was sent
	}
	m.attempts++
	return s.settle(ctx, m, s.Send(ctx, *m))
}

// settle writes down what came of an attempt. While the file cannot be written
// no other mail is sent, and this one is not sent again.
func (s *Sender) settle(ctx context.Context, m *Mail, failure error) error {
	err := s.DB.WriteBackground(context.WithoutCancel(ctx), outcome(m, failure))
	for tries := 1; store.CodeOf(err) == store.CodeUnavailable && (ctx.Err() == nil || tries <= maxLastTries); tries++ {
		s.Log.Error("mail_outcome_not_written", "error", err, "mail_id", m.ID)
		time.Sleep(time.Second)
		err = s.DB.WriteBackground(context.WithoutCancel(ctx), outcome(m, failure))
	}
	s.logOutcome(m, failure)
	return err
}

// outcome is what an attempt changes in the file.
func outcome(m *Mail, failure error) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		switch {
		case failure == nil:
			return m.finish(tx, StateSent, "")
		case m.over(failure):
			return m.finish(tx, StateFailed, failure.Error())
		}
		return m.fail(tx, failure.Error())
	}
}

// over reports whether a failed attempt was the last.
func (m *Mail) over(failure error) bool {
	return permanent(failure) || m.attempts > len(schedule)
}

func (s *Sender) logOutcome(m *Mail, failure error) {
	args := append(s.attributes(m), "attempt", m.attempts)
	switch {
	case failure == nil:
		s.Log.Info("mail_sent", args...)
	case m.over(failure):
		s.Log.Error("mail_failed", append(args, "error", failure.Error())...)
	default:
		s.Log.Warn("mail_not_sent_yet", append(args, "error", failure.Error(), "again_in", wait(m.attempts).String())...)
	}
}

// logInstead ends a mail that cannot be sent at all in the log: for the
// operator to tell the customer.
func (s *Sender) logInstead(ctx context.Context, m *Mail) error {
	why := "the customer has no email"
	if m.Recipient != "" {
		why = "JPINTEL_SMTP_URL is not set"
	}
	if err := s.DB.WriteBackground(ctx, func(tx *store.Tx) error { return m.finish(tx, StateLogged, why) }); err != nil {
		return err
	}
	s.Log.Warn("mail_logged", append(s.attributes(m), "subject", m.Subject, "reason", why)...)
	return nil
}

func (s *Sender) attributes(m *Mail) []any {
	return []any{"mail_id", m.ID, "kind", m.Kind, "subscription_id", m.SubscriptionID, "customer_id_hash", s.DB.Keys.HashID(m.CustomerID)}
}
