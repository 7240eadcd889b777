package modelgatetest

// dialect is how a profile answers.
type dialect struct {
	keyOptional  bool   // a call without a key is executed
	running      string // the code while the key's first call runs; always 409
	retryAfter   bool   // and whether it says when to come back
	reused       string // the code where the key stands for another request
	reusedStatus int
	documents    bool // conflicts of keys are problem documents
	keyMetadata  bool // a replayed creation of a key is 200
}

var dialects = map[Profile]*dialect{
	ProfileDefault: {running: "idempotency_in_progress", retryAfter: true, reused: "idempotency_key_reused", reusedStatus: 409},
	ProfileStripe:  {keyOptional: true, running: "idempotency_key_in_use", reused: "idempotency_error", reusedStatus: 400},
	ProfileIETF:    {running: "idempotency_in_progress", reused: "idempotency_key_reused", reusedStatus: 422, documents: true},
	ProfileStrict:  {running: "idempotency_in_progress", retryAfter: true, reused: "idempotency_conflict", reusedStatus: 409, keyMetadata: true},
}

// dialect is the profile of now.
func (c *call) dialect() *dialect {
	c.u.mu.Lock()
	defer c.u.mu.Unlock()
	return dialects[c.u.options.Profile]
}

func (d *dialect) dress(p *problem) *problem {
	p.document = d.documents
	return p
}
