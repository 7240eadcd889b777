package webhook

import (
	"context"
	"testing"
	"time"
)

// BenchmarkRenderAndSign makes the body of an attempt, of about 1 KB, and signs
// it in both families.
func BenchmarkRenderAndSign(b *testing.B) {
	data, err := marshal(benchProgram(1))
	if err != nil {
		b.Fatal(err)
	}
	e := &storedEvent{
		id: "evt_01HX9Z2K7V3B4C5D6E7F8G9H0J", typ: TypeProgramCreated, subjectType: "program", subjectID: "UNI-00000001", occurredAtMS: 1747180800000,
		createdAt: "2026-05-14T09:00:00+09:00", createdAtMS: 1747180800000, schemaVersion: schemaVersion, data: data,
	}
	secrets, now := []string{newSecret()}, time.Now()
	for _, envelope := range []Envelope{EnvelopeV1, EnvelopeV2} {
		b.Run(string(envelope), func(b *testing.B) {
			b.ReportAllocs()
			size := 0
			for b.Loop() {
				body := e.render(envelope, "sub_01HX9Z2K7V3B4C5D6E7F8G9H0J")
				sign(secrets, e.id, now, body)
				size = len(body)
			}
			b.SetBytes(int64(size))
		})
	}
}

// BenchmarkRequest is all that is done for an attempt before it goes out: the
// URL is judged, the body signed, the headers set.
func BenchmarkRequest(b *testing.B) {
	guard := NewGuard(GuardOptions{Ports: []uint16{443}})
	s := NewSender(guard, "Jpintel", "bench")
	data, err := marshal(benchProgram(1))
	if err != nil {
		b.Fatal(err)
	}
	r := Request{
		URL: "https://hooks.example.com/jpintel", Secrets: []string{newSecret()}, EventID: "evt_01HX9Z2K7V3B4C5D6E7F8G9H0J",
		EventType: TypeProgramCreated, DeliveryID: "dlv_01HX9Z2K7V3B4C5D6E7F8G9H0J", Attempt: 1, Body: data,
	}
	now := time.Now()
	b.ReportAllocs()
	for b.Loop() {
		to, err := s.check(r.URL)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.request(context.Background(), to, r, now); err != nil {
			b.Fatal(err)
		}
	}
}
