package modelgatetest

import "slices"

// Traffic is what was seen under one Idempotency-Key, since the start: retention
// has no end here.
type Traffic struct {
	WireRequests int `json:"wire_requests"` // that came in with it, whatever became of them
	// Fingerprints are the distinct ones of requests whose body could be read.
	Fingerprints []string `json:"fingerprints"`
	// MaxConcurrent is how many there were at one time, until their answer or the
	// end of their connection. A client that has left is noticed a moment later.
	MaxConcurrent  int `json:"max_concurrent"`
	Executions     int `json:"executions"`  // that ended with an answer, be it an error
	RolledBack     int `json:"rolled_back"` // executed and lost
	Replays        int `json:"replays"`
	RefusedRunning int `json:"refused_running"` // 409: in progress
	RefusedReused  int `json:"refused_reused"`  // the key stands for another request

	inFlight int
}

// trafficOf is a key's. The mutex is held.
func (u *Upstream) trafficOf(key string) *Traffic {
	t := u.traffic[key]
	if t == nil {
		t = &Traffic{Fingerprints: []string{}}
		u.traffic[key] = t
	}
	return t
}

func (t *Traffic) arrive() {
	t.WireRequests++
	t.inFlight++
	t.MaxConcurrent = max(t.MaxConcurrent, t.inFlight)
}

func (t *Traffic) saw(fingerprint string) {
	if !slices.Contains(t.Fingerprints, fingerprint) {
		t.Fingerprints = append(t.Fingerprints, fingerprint)
	}
}
