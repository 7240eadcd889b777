package webhook

import (
	"fmt"

	"jpintel/store"
)

// Rollout says whom webhooks are open to. It is the operator's, from the
// environment, and holds until the next start. The kill switch is another thing:
// it stops requests at any moment, and takes no call from anybody.
type Rollout string

// The steps of a rollout.
const (
	RolloutOff  Rollout = "off"  // nobody: the calls answer 503, and nothing is sent
	RolloutBeta Rollout = "beta" // paid customers with the beta flag; what the others would be sent waits
	RolloutGA   Rollout = "ga"   // every paid customer; "" is the same
)

// UnmarshalText reads one of the steps.
func (r *Rollout) UnmarshalText(text []byte) error {
	switch step := Rollout(text); step {
	case RolloutOff, RolloutBeta, RolloutGA:
		*r = step
		return nil
	}
	return fmt.Errorf("%q is not off, beta or ga", text)
}

// ErrRolloutOff is the answer of every webhook call while the rollout is off.
var ErrRolloutOff = store.Errorf(store.CodeUnavailable, "webhooks are not open yet")

var errNotInBeta = store.Errorf(store.CodeForbidden, "webhooks are open to beta customers only at the moment; this account is not one of them")

// Admit returns why a customer may not make webhook calls at this step, or nil.
func (r Rollout) Admit(c store.Customer) error {
	switch {
	case r == RolloutOff:
		return ErrRolloutOff
	case c.Tier != store.TierPaid:
		return ErrFreeTier
	case r == RolloutBeta && !c.Beta:
		return errNotInBeta
	}
	return nil
}
