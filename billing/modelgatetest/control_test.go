package modelgatetest_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

// control calls beside the contract.
func (p *partner) control(method, path, body string) answer {
	p.t.Helper()
	req, err := http.NewRequest(method, strings.TrimSuffix(p.u.BaseURL(), "/v1")+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	return p.send(req)
}

// The control calls do what the methods do, without a token.
func TestControl(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
	group := p.group("cus_a:signup:1")
	key := p.must(201, "POST", "/groups/"+group+"/keys", object{"name": "K", "external_ref": "cus_a:default:1"}, "Idempotency-Key", "make-key")
	p.must(201, "POST", "/groups/"+group+"/keys", object{"name": "K", "external_ref": "cus_a:default:1"}, "Idempotency-Key", "make-key")
	p.must(201, "POST", "/groups/"+group+"/top-ups", object{"amount": "5.00", "currency": "USD", "external_ref": "entry-1"})
	p.must(200, "PATCH", "/groups/"+group+"/limits", limit("10.00", "1"))

	expected{"now": "2026-03-08T13:00:00.000Z"}.check(t, p.control("POST", "/__advance", `{"d":"169h"}`))
	expected{"faults.0.do": "status:503", "faults.0.match.path_re": "^/balance$"}.check(t, p.control("POST", "/__faults", `{"match":{"path_re":"^/balance$","prob":1.0},"at":"accept","do":"status:503","times":1}`))
	p.must(503, "GET", "/balance", nil)
	expected{"cost": "0.000412500000", "finalized": "true", "id": "^mrq_"}.check(t, p.control("POST", "/__usage", `{"key_id":"`+key.str("id")+`","model":"small","cost":"0.0004125"}`))
	expected{"faults.0": "null"}.check(t, p.control("DELETE", "/__faults", ""))
	for path, body := range map[string]string{"/__advance": `{"d":"-1h"}`, "/__faults": `{"at":"accept","do":"explode"}`, "/__usage": `{"key_id":"x","cost":"1.00"}`, "/__faults?": `{"when":"accept"}`} {
		if a := p.control("POST", path, body); a.status != 400 || a.str("error") == "" {
			t.Errorf("%s %s: %d %s", path, body, a.status, a.text)
		}
	}

	state := p.control("GET", "/__state", "")
	if strings.Contains(state.text, key.str("secret")) {
		t.Error("the state has the secret")
	}
	expected{"groups.0.id": group, "keys.0.id": key.str("id"), "transactions.0.amount": "5.00", "usage.0.cost": "0.000412500000", "wallet.balance": "999995.00", "balances." + group: "4.9995875", "limits." + group + ".usage_in_period": "0.0004125"}.check(t, state)
	for path, want := range map[string]string{
		"external_refs.cus_a:signup:1.live_groups": "1", "external_refs.cus_a:default:1.active_keys": "1", "external_refs.entry-1.top_ups": "1",
		"idempotency.make-key.wire_requests": "2", "idempotency.make-key.max_concurrent": "1", "idempotency.make-key.replays": "1",
	} {
		steps := []any{}
		for _, name := range strings.Split(path, ".") {
			steps = append(steps, name)
		}
		if got, _ := state.get(steps...).(interface{ String() string }); got == nil || got.String() != want {
			t.Errorf("%s is %v, want %s", path, got, want)
		}
	}
	expected{"audit.1.idempotency_key": "make-key", "audit.1.action": "key.create"}.check(t, state)
}

// It serves on the loopback only, and on one address at a time.
func TestServeRefusesOthers(t *testing.T) {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := modelgatetest.New(modelgatetest.Options{}).Serve(listener); err == nil || !strings.Contains(err.Error(), "not an address of the loopback") {
		t.Error(err)
	}
	if _, err := listener.Accept(); err == nil {
		t.Error("it still listens")
	}
}

func TestOptionsValidate(t *testing.T) {
	for want, o := range map[string]modelgatetest.Options{
		"token": {Token: "secret"}, "profile": {Profile: "square"}, "external_ref_mode": {ExternalRefMode: "some"}, "secret_on_replay": {SecretOnReplay: "always"},
		"idem_scope": {IdemScope: "path"}, "list_lag": {AuditLag: -1}, "currency": {Currency: "usd"}, "max_keys": {MaxKeys: -1}, "min_top_up": {MinTopUp: "1e0"}, "max_limit": {MaxLimit: "x"},
	} {
		if err := o.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
	if err := (modelgatetest.Options{}).Validate(); err != nil {
		t.Error(err)
	}
}

// Half a request is none: it counts as one that came in, and nothing happens.
func TestHalfARequest(t *testing.T) {
	p := start(t, modelgatetest.Options{})
	conn := p.dial()
	_, err := io.WriteString(conn, "POST /v1/groups HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+modelgatetest.DevToken+"\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n{\"name\":")
	if err != nil {
		t.Fatal(err)
	}
	p.until("it is there", func(s modelgatetest.State) bool { return s.Idempotency["k"].WireRequests == 1 })
	conn.Close()
	p.must(201, "POST", "/groups", created, "Idempotency-Key", "k")
	s := p.u.State()
	if len(s.Groups) != 1 || len(s.ReusedKeys()) != 0 || s.Idempotency["k"].Executions != 1 {
		t.Errorf("%d groups, %+v", len(s.Groups), s.Idempotency["k"])
	}
}
