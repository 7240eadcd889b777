package webhook

import (
	"testing"
	"time"

	"jpintel/store"
)

func TestPolicy(t *testing.T) {
	s := &Service{
		Guard: NewGuard(GuardOptions{Ports: []uint16{443, 8443}}), Schedule: []Duration{Duration(time.Minute), Duration(12 * time.Hour)}, EndpointConcurrency: 4, Rate: 30,
		DeadLetterLimit: 100, Retention: Duration(30 * day), EventRetention: Duration(90 * day), WarnAfter: Duration(day), RotationGrace: Duration(time.Hour),
	}
	p, err := s.Policy(t.Context(), PolicyRequest{"cus_a"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"retry_schedule":["1m","12h"],"connect_timeout":"3s","answer_timeout":"7s","endpoint_concurrency":4,"rate":30,"daily_cap":0,` +
		`"dead_letter_limit":100,"retention":"30d","event_retention":"90d","warn_after":"1d","disable_after":null,"rotation_grace":"1h","subscriptions":20,"max_data_bytes":65536,"signature_tolerance":"5m","ports":[443,8443]}`
	if got, err := marshal(p); err != nil || string(got) != want {
		t.Errorf("got  %s, %v\nwant %s", got, err, want)
	}
}

func TestEventTypesAsTheyAreServed(t *testing.T) {
	s := &Service{}
	page, err := s.EventTypes(t.Context(), EventTypesRequest{"cus_a"})
	if err != nil || page.NextCursor != nil || len(page.Data) != len(EventTypes()) {
		t.Fatalf("%+v, %v", page, err)
	}
	for _, want := range page.Data {
		got, err := s.EventType(t.Context(), EventTypeRequest{"cus_a", want.Type})
		if err != nil || got.Type != want.Type || string(got.Example) != string(want.Example) {
			t.Errorf("%s: %+v, %v", want.Type, got, err)
		}
	}
	_, err = s.EventType(t.Context(), EventTypeRequest{"cus_a", "x"})
	wantCode(t, err, store.CodeNotFound, `"x"`)
}
