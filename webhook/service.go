package webhook

import (
	"context"

	"jpintel/store"
)

// Limits are the numbers in force that customers may ask for.
type Limits struct {
	RetrySchedule       []Duration `json:"retry_schedule"` // after the first attempt, each ±10 %
	ConnectTimeout      Duration   `json:"connect_timeout"`
	AnswerTimeout       Duration   `json:"answer_timeout"`
	EndpointConcurrency int        `json:"endpoint_concurrency"` // requests at a time to one subscription
	Rate                int        `json:"rate"`                 // requests a second, and as a burst, to one URL; 0: no limit
	DailyCap            int        `json:"daily_cap"`            // attempts a day; 0: no limit
	DeadLetterLimit     int        `json:"dead_letter_limit"`    // of a subscription since it was enabled; 0: no limit
	Retention           Duration   `json:"retention"`            // of finished deliveries, dead letters among them
	EventRetention      Duration   `json:"event_retention"`      // of events in the feed
	WarnAfter           *Duration  `json:"warn_after"`           // of nothing but failures the owner gets a mail; null: never
	DisableAfter        *Duration  `json:"disable_after"`        // of nothing but failures a subscription is disabled; null: never
	RotationGrace       Duration   `json:"rotation_grace"`       // how long a replaced secret goes on signing
	Subscriptions       int        `json:"subscriptions"`        // active ones a customer
	MaxBody             int        `json:"max_data_bytes"`
	SignatureTolerance  Duration   `json:"signature_tolerance"` // what receivers should allow
	Ports               []uint16   `json:"ports"`
}

// Service answers customers' calls about webhooks.
type Service struct {
	DB       *store.DB
	Outbox   *Outbox
	Guard    *Guard
	Sender   *Sender    // for test pings; the worker's own
	Cap      *DailyCap  // the worker's own
	Schedule []Duration // after the first attempt
	// EndpointConcurrency is how many requests at a time one subscription gets.
	EndpointConcurrency int
	Rate                int // requests a second to one URL of a customer
	DeadLetterLimit     int
	Retention           Duration
	EventRetention      Duration
	WarnAfter           Duration // the worker's own; 0: never
	DisableAfter        Duration // the same
	RotationGrace       Duration // how long a replaced secret goes on signing
	// Changed is told of subscriptions that were changed, after the commit, for
	// the worker to read them again. It may be nil.
	Changed func(subSeq int64)

	pings pings
}

// changed tells the worker once the transaction is committed.
func (s *Service) changed(tx *store.Tx, subSeq int64) {
	if s.Changed != nil {
		tx.AfterCommit(func() { s.Changed(subSeq) })
	}
}

// PolicyRequest asks for the numbers in force.
type PolicyRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// Policy returns the numbers in force.
func (s *Service) Policy(context.Context, PolicyRequest) (Limits, error) {
	return Limits{
		RetrySchedule: s.Schedule, ConnectTimeout: Duration(connectTimeout), AnswerTimeout: Duration(answerTimeout),
		EndpointConcurrency: s.EndpointConcurrency, Rate: s.Rate, DailyCap: s.Cap.max(), DeadLetterLimit: s.DeadLetterLimit, Retention: s.Retention, EventRetention: s.EventRetention,
		WarnAfter: orNever(s.WarnAfter), DisableAfter: orNever(s.DisableAfter), RotationGrace: s.RotationGrace, Subscriptions: maxSubscriptions, MaxBody: maxData,
		SignatureTolerance: Duration(Tolerance), Ports: s.Guard.ports,
	}, nil
}

func orNever(d Duration) *Duration {
	if d == 0 {
		return nil
	}
	return &d
}

// EventTypesRequest asks for the catalogue.
type EventTypesRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// EventTypes returns the catalogue as a list.
func (s *Service) EventTypes(context.Context, EventTypesRequest) (store.Page[EventType], error) {
	return store.Page[EventType]{Data: EventTypes()}, nil
}

// EventTypeRequest asks for one entry of the catalogue.
type EventTypeRequest struct {
	CustomerID string `bind:"customer" json:"-"`
	Type       Type   `path:"type" json:"-"`
}

// EventType returns one entry of the catalogue.
func (s *Service) EventType(_ context.Context, r EventTypeRequest) (EventType, error) {
	return GetEventType(r.Type)
}
