package webhook

import (
	"slices"
	"testing"
)

// Each payload knows its type, what it is about and whom it is for: what is
// stored of the catalogue's examples.
func TestPayloadsKnowThemselves(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_example")
	var payloads []Payload
	for _, e := range EventTypes() {
		if got := e.example.Type(); got != e.Type {
			t.Errorf("the example of %s is of type %s", e.Type, got)
		}
		payloads = append(payloads, e.example)
	}
	publish(t, s, payloads...)
	got := lines(t, s.DB, `SELECT event_type, customer_id, subject_type, subject_id FROM outbox_events ORDER BY seq`)
	want := []string{
		"program.created - program UNI-7f3c21",
		"program.updated - program UNI-7f3c21",
		"program.matching_filter cus_example program UNI-7f3c21",
		"adoption.published - adoption ADP-2026-0042",
		"exclusion_rule.added cus_example exclusion_rule ER-118",
		"tier.quota.warning cus_example customer cus_example",
		"usage.finalized cus_example usage_record usage_9182",
		"credit.adjustment_posted cus_example ledger_entry led_5521",
		"budget.threshold_crossed cus_example budget cus_example:2026-10",
		"key.status_changed cus_example model_key key_77",
		"customer.provisioned cus_example customer cus_example",
		"webhook.subscription_disabled cus_example webhook_subscription sub_01HX9Z2K7V3B4C5D6E7F8G9H0J",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if p := (Test{}); p.Type() != TypeTest || p.Customer() != "" || p.SubjectID() != "" {
		t.Errorf("the test ping: %s, %q, %q", p.Type(), p.Customer(), p.SubjectID())
	}
}
