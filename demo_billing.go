package main

import (
	"context"
	"fmt"
	"net"

	"jpintel/billing"
	"jpintel/billing/modelgatetest"
)

const (
	demoLimit = "100.00"
	// demoTimeout is how long the demo's server waits for the partner API.
	demoTimeout = "700ms"
)

// startPartner starts a stand-in for the partner API. It makes the first group
// that it is asked for, and does not answer.
func (d *demo) startPartner() error {
	d.partner = modelgatetest.New(modelgatetest.Options{})
	err := d.partner.AddFaults(modelgatetest.Rule{
		Match: modelgatetest.Match{Method: "POST", PathRE: "^/groups$"}, At: modelgatetest.AtAfterCommit, Do: "hang", Times: 1,
	})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	go func() { _ = d.partner.Serve(listener) }() // ends with the process
	d.partnerURL = "http://" + listener.Addr().String() + "/v1"
	return nil
}

// provision signs the customer up at the partner API, which has a bad moment.
func (d *demo) provision(ctx context.Context) error {
	d.say("\n5. A sign-up at the partner API, by a button that is clicked three times. The partner makes the group and never answers.")
	var first billing.Accepted
	for _, click := range []string{"click-1", "click-1", "click-2"} {
		var accepted billing.Accepted
		err := d.client.adminOnce(ctx, click, "/v1/admin/customers", map[string]any{"customer_id": "cus_demo", "tier": "paid", "spend_limit": demoLimit}, &accepted)
		if err != nil {
			return err
		}
		if first.OperationID == "" {
			first = accepted
		}
		if accepted.OperationID != first.OperationID {
			return fmt.Errorf("%s has begun %s beside %s", click, accepted.OperationID, first.OperationID)
		}
		d.say("   %s  -> %s, the customer is %s", click, accepted.OperationID, accepted.Status)
	}
	err := d.until(ctx, "the customer to be ready", func() (bool, error) {
		var c billing.Customer
		err := d.client.admin(ctx, "GET", "/v1/admin/customers/cus_demo", nil, &c)
		return c.Status != nil && *c.Status == billing.Ready, err
	})
	if err != nil {
		return err
	}
	if err := d.showOperations(ctx, first.OperationID); err != nil {
		return err
	}
	if err := d.madeOnce(); err != nil {
		return err
	}
	if err := d.settled(ctx); err != nil {
		return err
	}
	return d.showArrived("customer.provisioned")
}

// showArrived shows the one event of a type that has arrived.
func (d *demo) showArrived(eventType string) error {
	arrived := d.healthy.ofType(eventType)
	if len(arrived) != 1 {
		return fmt.Errorf("%s arrived %d times, want once", eventType, len(arrived))
	}
	got := arrived[0]
	d.say("   %s  <- %s attempt %d, answered %d\n      %s", d.healthy.name, got.EventType, got.Attempt, got.Answered, got.Body)
	return nil
}

// showOperations shows each request of a sign-up.
func (d *demo) showOperations(ctx context.Context, id string) error {
	var parent billing.Record
	if err := d.client.admin(ctx, "GET", "/v1/admin/operations/"+id, nil, &parent); err != nil {
		return err
	}
	for _, child := range parent.Children {
		var r billing.Record
		if err := d.client.admin(ctx, "GET", "/v1/admin/operations/"+child, nil, &r); err != nil {
			return err
		}
		for _, attempt := range r.Attempts {
			d.say("   %-17s %-9s %-10s %s", r.Action, attempt.Kind, *attempt.Outcome, answerOf(attempt))
		}
	}
	return nil
}

func answerOf(a billing.Attempt) string {
	switch {
	case a.Status == nil:
		return "no answer"
	case a.Replayed:
		return fmt.Sprintf("%d, the answer that was lost", *a.Status)
	}
	return fmt.Sprint(*a.Status)
}

// madeOnce holds what the partner API has against what was asked for.
func (d *demo) madeOnce() error {
	state := d.partner.State()
	if len(state.Groups) != 1 || len(state.Keys) != 1 || state.Limits[state.Groups[0].ID].SpendLimit != demoLimit {
		return fmt.Errorf("the partner API has the groups %+v, the keys %+v and the limits %+v: want one of each", state.Groups, state.Keys, state.Limits)
	}
	d.say("   At the partner API: %d group, %d key, a limit of %s %s.", len(state.Groups), len(state.Keys), demoLimit, state.Limits[state.Groups[0].ID].Currency)
	return nil
}
