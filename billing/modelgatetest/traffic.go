package modelgatetest

import "slices"

// Traffic is what was seen under one Idempotency-Key, since the start: retention
// has no end here.
type Traffic struct {
	WireRequests int `json:"wire_requests"` // that came in with it, whatever became of them
	// Fingerprints are the distinct ones of requests whose body could be read.
	Fingerprints []string `json:"fingerprints"`
	// InFlight is how many there are now, until their answer, or until their client
	// has left: that is noticed a moment later, and not before the body is read.
	InFlight       int `json:"in_flight"`
	MaxConcurrent  int `json:"max_concurrent"` // the most that there were at one time
	Executions     int `json:"executions"`     // that ended with an answer, be it an error
	RolledBack     int `json:"rolled_back"`    // executed and lost
	Replays        int `json:"replays"`
	RefusedRunning int `json:"refused_running"` // 409: in progress
	RefusedReused  int `json:"refused_reused"`  // the key stands for another request
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
	t.InFlight++
	t.MaxConcurrent = max(t.MaxConcurrent, t.InFlight)
}

func (t *Traffic) saw(fingerprint string) {
	if !slices.Contains(t.Fingerprints, fingerprint) {
		t.Fingerprints = append(t.Fingerprints, fingerprint)
	}
}
