package modelgatetest

import (
	"time"
)

// auditEvent says who has changed what.
type auditEvent struct {
	AuditEvent
	at  time.Time
	key string // the Idempotency-Key of the change, which is not on the wire
}

// AuditEvent is the same on the wire.
type AuditEvent struct {
	ID         string            `json:"id"`
	RequestID  string            `json:"request_id"`
	Action     string            `json:"action"`
	Target     AuditTarget       `json:"target"`
	SourceIP   string            `json:"source_ip"`
	Status     string            `json:"status"` // succeeded: there are no others
	Metadata   map[string]string `json:"metadata"`
	OccurredAt string            `json:"occurred_at"`
}

// AuditTarget is what was changed.
type AuditTarget struct {
	Type string `json:"type"` // group, key or transaction
	ID   string `json:"id"`
}

func (e auditEvent) place() place { return place{e.at, e.ID} }

// changed notes the change that the execution has made: it has one audit event,
// which is committed with it.
func (s *session) changed(action, kind, id string, metadata map[string]string) {
	if metadata == nil {
		metadata = map[string]string{}
	}
	s.audit = &auditEvent{at: s.now, key: s.call.key, AuditEvent: AuditEvent{
		ID: s.id("aud"), RequestID: s.call.requestID, Action: action, Target: AuditTarget{kind, id},
		SourceIP: s.call.sourceIP(), Status: "succeeded", Metadata: metadata, OccurredAt: stamp(s.now),
	}}
}

// listAudit is GET /audit-events. It shows what is older than the lag.
func listAudit(c *call) (execution, error) {
	q, err := c.query("request_id", "action", "target_id", "from", "to")
	if err != nil {
		return nil, err
	}
	from, to, err := q.between("from", "to")
	if err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		page := paginate(q, s.data.audit.all(s.at.Add(-s.options.AuditLag)), auditEvent.place, func(e auditEvent) bool {
			return q.is("request_id", e.RequestID) && q.is("action", e.Action) && q.is("target_id", e.Target.ID) && within(e.at, from, to)
		})
		return page.reply(func(e auditEvent) any { return e.AuditEvent })
	}, nil
}
