package modelgatetest_test

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
)

// world has one thing of each kind.
type world struct {
	*partner
	group, frozen, deleted, key, revoked, txn string
}

func newWorld(t *testing.T, options modelgatetest.Options) *world {
	p := start(t, options)
	w := &world{partner: p, group: p.group("cus_a:signup:1"), frozen: p.group("cus_b:signup:1"), deleted: p.group("cus_c:signup:1")}
	w.key = p.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "K", "purpose": "default", "external_ref": "cus_a:default:1"}).str("id")
	w.revoked = p.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "R", "purpose": "old"}).str("id")
	p.must(200, "DELETE", "/keys/"+w.revoked, nil)
	w.txn = p.must(201, "POST", "/groups/"+w.group+"/top-ups", object{"amount": "25.00", "currency": "USD", "external_ref": "entry-1", "memo": "m"}).str("id")
	p.must(200, "PATCH", "/groups/"+w.group+"/limits", limit("100.00", "3"))
	p.must(200, "PATCH", "/groups/"+w.frozen, object{"status": "frozen"})
	p.must(200, "DELETE", "/groups/"+w.deleted, nil)
	return w
}

// expected is what an answer's members are; a value that begins with ^ is an
// expression.
type expected map[string]string

func (e expected) check(t *testing.T, a answer) {
	t.Helper()
	for path, want := range e {
		var steps []any
		for _, name := range strings.Split(path, ".") {
			if index, err := strconv.Atoi(name); err == nil {
				steps = append(steps, index)
				continue
			}
			steps = append(steps, name)
		}
		got := a.get(steps...)
		text, isText := got.(string)
		switch {
		case want == "null" && got == nil:
		case want == "true" && got == true, want == "false" && got == false:
		case isText && strings.HasPrefix(want, "^") && regexp.MustCompile(want).MatchString(text):
		case isText && text == want:
		default:
			t.Errorf("%s is %v, want %s: %s", path, got, want, a.text)
		}
	}
}

const isTime = `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`

// TestCalls goes through the contract's table: each call's success, and the
// errors that it names.
func TestCalls(t *testing.T) {
	options := modelgatetest.Options{WalletBalance: "1000.00", MaxKeys: 3, Models: []string{"small", "large"}}
	for name, test := range map[string]struct {
		call func(*world) answer
		want int
		code string
		body expected
	}{
		"group create": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N", "external_ref": "cus_9:signup:1", "models": []string{"small"}, "spend_limit": "0.00", "period": "month", "metadata": object{"a": "b"}})
		}, 201, "", expected{"id": "^grp_[0-9A-Z]{26}$", "name": "N", "external_ref": "cus_9:signup:1", "status": "active", "spend_limit": "0.00", "period": "month", "metadata.a": "b", "models.0": "small", "created_at": isTime, "updated_at": isTime}},
		"group create, safe default": {func(w *world) answer { return w.call("POST", "/groups", object{"name": "N"}) }, 201, "", expected{"spend_limit": "0.00", "period": "month"}},
		"group create, same ref": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N", "external_ref": "cus_a:signup:1"})
		}, 201, "", nil},
		"group create, model": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N", "models": []string{"huge"}})
		}, 422, "model_unknown", expected{"error.param": "models", "error.type": "validation", "error.retryable": "false"}},
		"group create, limit": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N", "spend_limit": "1000000.000000000001"})
		}, 422, "limit_out_of_range", nil},
		"group create, no name": {func(w *world) answer { return w.call("POST", "/groups", object{}) }, 400, "validation_failed", expected{"error.param": "name", "error.request_id": "^req_"}},
		"group get":             {func(w *world) answer { return w.call("GET", "/groups/"+w.group, nil) }, 200, "", expected{"external_ref": "cus_a:signup:1", "spend_limit": "100.00"}},
		"group get, deleted":    {func(w *world) answer { return w.call("GET", "/groups/"+w.deleted, nil) }, 200, "", expected{"status": "deleted"}},
		"group get, none":       {func(w *world) answer { return w.call("GET", "/groups/grp_x", nil) }, 404, "group_not_found", nil},
		"group list":            {func(w *world) answer { return w.call("GET", "/groups?external_ref=cus_b:signup:1", nil) }, 200, "", expected{"data.0.status": "frozen", "next_cursor": "null"}},
		"group list, deleted":   {func(w *world) answer { return w.call("GET", "/groups?external_ref=cus_c:signup:1", nil) }, 200, "", expected{"data.0": "null"}},
		"group freeze":          {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group, object{"status": "frozen"}) }, 200, "", expected{"status": "frozen"}},
		"group thaw":            {func(w *world) answer { return w.call("PATCH", "/groups/"+w.frozen, object{"status": "active"}) }, 200, "", expected{"status": "active"}},
		"group rename": {func(w *world) answer {
			return w.call("PATCH", "/groups/"+w.group, object{"name": "M", "metadata": object{}})
		}, 200, "", expected{"name": "M", "status": "active"}},
		"group change, empty":   {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group, object{}) }, 400, "validation_failed", nil},
		"group change, state":   {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group, object{"status": "deleted"}) }, 400, "validation_failed", expected{"error.param": "status"}},
		"group change, deleted": {func(w *world) answer { return w.call("PATCH", "/groups/"+w.deleted, object{"status": "frozen"}) }, 409, "group_deleted", expected{"error.type": "conflict"}},
		"group delete":          {func(w *world) answer { return w.call("DELETE", "/groups/"+w.frozen, nil) }, 200, "", expected{"deleted": "true", "id": "^grp_"}},
		"group delete again":    {func(w *world) answer { return w.call("DELETE", "/groups/"+w.deleted, nil) }, 200, "", expected{"deleted": "true"}},
		"group delete, balance": {func(w *world) answer { return w.call("DELETE", "/groups/"+w.group, nil) }, 409, "group_has_balance", nil},
		"group delete, body":    {func(w *world) answer { return w.call("DELETE", "/groups/"+w.frozen, object{}) }, 400, "validation_failed", nil},

		"key create": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/keys", object{"name": "K", "purpose": "default", "external_ref": "cus_a:default:2"})
		}, 201, "", expected{"id": "^key_", "group_id": "^grp_", "prefix": "^mg_[a-z0-9]{4}$", "secret": "^mg_[a-z0-9]{20,}$", "secret_available": "true", "status": "active", "purpose": "default", "external_ref": "cus_a:default:2", "created_at": isTime}},
		"key create, frozen":  {func(w *world) answer { return w.call("POST", "/groups/"+w.frozen+"/keys", object{"name": "K"}) }, 409, "group_frozen", nil},
		"key create, deleted": {func(w *world) answer { return w.call("POST", "/groups/"+w.deleted+"/keys", object{"name": "K"}) }, 409, "group_deleted", nil},
		"key create, none":    {func(w *world) answer { return w.call("POST", "/groups/grp_x/keys", object{"name": "K"}) }, 404, "group_not_found", nil},
		"key create, too many": {func(w *world) answer {
			w.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "2"})
			w.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "3"})
			return w.call("POST", "/groups/"+w.group+"/keys", object{"name": "4"})
		}, 409, "key_limit_reached", nil},
		"key get":       {func(w *world) answer { return w.call("GET", "/keys/"+w.key, nil) }, 200, "", expected{"secret": "null", "secret_available": "false", "status": "active", "revoked_at": "null"}},
		"key get, none": {func(w *world) answer { return w.call("GET", "/keys/key_x", nil) }, 404, "key_not_found", nil},
		"key list": {func(w *world) answer {
			return w.call("GET", "/groups/"+w.group+"/keys?external_ref=cus_a:default:1", nil)
		}, 200, "", expected{"data.0.purpose": "default", "data.0.secret": "null"}},
		"key list, none":        {func(w *world) answer { return w.call("GET", "/groups/grp_x/keys", nil) }, 404, "group_not_found", nil},
		"key disable":           {func(w *world) answer { return w.call("PATCH", "/keys/"+w.key, object{"status": "disabled"}) }, 200, "", expected{"status": "disabled"}},
		"key change, revoked":   {func(w *world) answer { return w.call("PATCH", "/keys/"+w.revoked, object{"status": "active"}) }, 409, "key_revoked", nil},
		"key revoke":            {func(w *world) answer { return w.call("DELETE", "/keys/"+w.key, nil) }, 200, "", expected{"status": "revoked", "revoked_at": isTime}},
		"key revoke again":      {func(w *world) answer { return w.call("DELETE", "/keys/"+w.revoked, nil) }, 200, "", expected{"status": "revoked", "revoked_at": isTime}},
		"limits get":            {func(w *world) answer { return w.call("GET", "/groups/"+w.group+"/limits", nil) }, 200, "", expected{"spend_limit": "100.00", "currency": "USD", "period": "month", "policy_version": "3", "usage_in_period": "0.00", "updated_at": isTime}},
		"limits get, new":       {func(w *world) answer { return w.call("GET", "/groups/"+w.frozen+"/limits", nil) }, 200, "", expected{"spend_limit": "0.00", "policy_version": "0"}},
		"limits change":         {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group+"/limits", limit("250.00", "4")) }, 200, "", expected{"spend_limit": "250.00", "policy_version": "4"}},
		"limits change, stale":  {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group+"/limits", limit("250.00", "3")) }, 409, "policy_version_stale", nil},
		"limits change, longer": {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group+"/limits", limit("250.00", "10")) }, 200, "", expected{"policy_version": "10"}},
		"limits change, match": {func(w *world) answer {
			return w.call("PATCH", "/groups/"+w.group+"/limits", limit("250.00", "4"), "If-Match", `"2"`)
		}, 200, "", nil},
		"limits change, moved": {func(w *world) answer {
			return w.call("PATCH", "/groups/"+w.group+"/limits", limit("250.00", "4"), "If-Match", `"1"`)
		}, 412, "version_mismatch", nil},
		"limits change, range": {func(w *world) answer { return w.call("PATCH", "/groups/"+w.group+"/limits", limit("1000000.01", "4")) }, 422, "limit_out_of_range", nil},
		"limits change, currency": {func(w *world) answer {
			return w.call("PATCH", "/groups/"+w.group+"/limits", object{"spend_limit": "1.00", "currency": "EUR", "period": "month", "policy_version": "4"})
		}, 422, "currency_mismatch", nil},

		"top-up": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/top-ups", object{"amount": "0.5000", "currency": "USD", "external_ref": "entry-2"})
		}, 422, "amount_below_minimum", expected{"error.param": "amount"}},
		"top-up, smallest":  {func(w *world) answer { return w.call("POST", "/groups/"+w.group+"/top-ups", usd("1")) }, 201, "", expected{"id": "^txn_", "type": "top_up", "amount": "1.00", "balance_after": "26.00", "status": "posted", "request_id": "^req_", "currency": "USD", "created_at": isTime}},
		"top-up, exact":     {func(w *world) answer { return w.call("POST", "/groups/"+w.group+"/top-ups", usd("1.000000000001")) }, 201, "", expected{"amount": "1.000000000001", "balance_after": "26.000000000001"}},
		"top-up, wallet":    {func(w *world) answer { return w.call("POST", "/groups/"+w.group+"/top-ups", usd("975.01")) }, 402, "insufficient_partner_balance", expected{"error.type": "balance"}},
		"top-up, all of it": {func(w *world) answer { return w.call("POST", "/groups/"+w.group+"/top-ups", usd("975.00")) }, 201, "", expected{"balance_after": "1000.00"}},
		"top-up, currency": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/top-ups", object{"amount": "5.00", "currency": "JPY"})
		}, 422, "currency_mismatch", nil},
		"top-up, frozen": {func(w *world) answer { return w.call("POST", "/groups/"+w.frozen+"/top-ups", usd("5.00")) }, 409, "group_frozen", nil},
		"adjustment": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/adjustments", object{"amount": "-5.00", "currency": "USD", "reason": "refund", "related_transaction_id": w.txn, "external_ref": "entry-3"})
		}, 201, "", expected{"type": "adjustment", "amount": "-5.00", "balance_after": "20.00", "reason": "refund", "external_ref": "entry-3"}},
		"adjustment, up": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/adjustments", object{"amount": "5", "currency": "USD", "reason": "correction"})
		}, 201, "", expected{"amount": "5.00", "balance_after": "30.00"}},
		"adjustment, too much": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/adjustments", object{"amount": "-25.000000000001", "currency": "USD", "reason": "refund"})
		}, 422, "insufficient_group_balance", expected{"error.type": "balance"}},
		"adjustment, zero": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.group+"/adjustments", object{"amount": "-0.00", "currency": "USD", "reason": "refund"})
		}, 400, "validation_failed", expected{"error.param": "amount"}},
		"adjustment, related": {func(w *world) answer {
			return w.call("POST", "/groups/"+w.frozen+"/adjustments", object{"amount": "5.00", "currency": "USD", "reason": "refund", "related_transaction_id": w.txn})
		}, 422, "transaction_unknown", nil},
		"balance":           {func(w *world) answer { return w.call("GET", "/groups/"+w.group+"/balance", nil) }, 200, "", expected{"balance": "25.00", "currency": "USD", "as_of": isTime}},
		"balance, none":     {func(w *world) answer { return w.call("GET", "/groups/grp_x/balance", nil) }, 404, "group_not_found", nil},
		"wallet":            {func(w *world) answer { return w.call("GET", "/balance", nil) }, 200, "", expected{"balance": "975.00"}},
		"transaction":       {func(w *world) answer { return w.call("GET", "/transactions/"+w.txn, nil) }, 200, "", expected{"external_ref": "entry-1", "memo": "m"}},
		"transaction, none": {func(w *world) answer { return w.call("GET", "/transactions/txn_x", nil) }, 404, "transaction_not_found", nil},
		"transactions": {func(w *world) answer {
			return w.call("GET", "/transactions?external_ref=entry-1&type=top_up&group_id="+w.group, nil)
		}, 200, "", expected{"data.0.amount": "25.00", "data.1": "null"}},
		"transactions, type": {func(w *world) answer { return w.call("GET", "/transactions?type=adjustment", nil) }, 200, "", expected{"data.0": "null"}},
		"usage":              {func(w *world) answer { return w.call("GET", "/requests", nil) }, 200, "", expected{"data.0": "null"}},
		"audit": {func(w *world) answer {
			return w.call("GET", "/audit-events?action=credit.top_up&target_id="+w.txn, nil)
		}, 200, "", expected{"data.0.id": "^aud_", "data.0.target.type": "transaction", "data.0.source_ip": "127.0.0.1", "data.0.status": "succeeded", "data.0.request_id": "^req_", "data.0.occurred_at": isTime, "data.0.metadata.amount": "25.00"}},

		"no token":    {func(w *world) answer { return w.call("GET", "/balance", nil, "Authorization", "-") }, 401, "unauthorized", expected{"error.type": "auth"}},
		"wrong token": {func(w *world) answer { return w.call("GET", "/balance", nil, "Authorization", "Bearer mgp_other") }, 401, "unauthorized", nil},
		"no route":    {func(w *world) answer { return w.call("GET", "/wallets", nil) }, 404, "route_not_found", nil},
		"no method":   {func(w *world) answer { return w.call("PUT", "/groups", object{}) }, 405, "method_not_allowed", nil},
		"no media type": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N"}, "Content-Type", "text/plain")
		}, 415, "unsupported_media_type", nil},
		"other charset": {func(w *world) answer {
			return w.call("POST", "/groups", object{"name": "N"}, "Content-Type", "application/json; charset=shift_jis")
		}, 415, "unsupported_media_type", nil},
		"too large":   {func(w *world) answer { return w.call("POST", "/groups", object{"name": strings.Repeat("N", 70_000)}) }, 413, "payload_too_large", nil},
		"no JSON":     {func(w *world) answer { return w.call("POST", "/groups", `{"name":`) }, 400, "malformed_json", nil},
		"no body":     {func(w *world) answer { return w.call("POST", "/groups", nil, "Content-Type", "application/json") }, 400, "malformed_json", nil},
		"no object":   {func(w *world) answer { return w.call("POST", "/groups", `["name"]`) }, 400, "malformed_json", nil},
		"two objects": {func(w *world) answer { return w.call("POST", "/groups", `{"name":"N"}{}`) }, 400, "malformed_json", nil},
		"name twice":  {func(w *world) answer { return w.call("POST", "/groups", `{"name":"N","name":"M"}`) }, 400, "malformed_json", nil},
		"other case":  {func(w *world) answer { return w.call("POST", "/groups", `{"name":"N","Name":"M"}`) }, 400, "validation_failed", expected{"error.param": "Name"}},
		"no UTF-8":    {func(w *world) answer { return w.call("POST", "/groups", "{\"name\":\"\xff\"}") }, 400, "malformed_json", nil},
		"deep": {func(w *world) answer {
			return w.call("POST", "/groups", `{"name":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)+`}`)
		}, 400, "malformed_json", nil},
		"unknown filter":  {func(w *world) answer { return w.call("GET", "/groups?ref=x", nil) }, 400, "validation_failed", expected{"error.param": "ref"}},
		"filter twice":    {func(w *world) answer { return w.call("GET", "/groups?limit=1&limit=2", nil) }, 400, "validation_failed", nil},
		"limit 101":       {func(w *world) answer { return w.call("GET", "/groups?limit=101", nil) }, 400, "validation_failed", expected{"error.param": "limit"}},
		"wrong cursor":    {func(w *world) answer { return w.call("GET", "/groups?cursor=abc", nil) }, 400, "validation_failed", expected{"error.param": "cursor"}},
		"wrong time":      {func(w *world) answer { return w.call("GET", "/audit-events?from=yesterday", nil) }, 400, "validation_failed", expected{"error.param": "from"}},
		"time with zone":  {func(w *world) answer { return w.call("GET", "/audit-events?to=2026-11-30T15:04:05%2B09:00", nil) }, 400, "validation_failed", nil},
		"query on a POST": {func(w *world) answer { return w.call("POST", "/groups?dry=1", object{"name": "N"}) }, 400, "validation_failed", nil},
		"read with query": {func(w *world) answer { return w.call("GET", "/balance?x=1", nil) }, 400, "validation_failed", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, options)
			a := test.call(w)
			if a.err != nil || a.status != test.want || a.code() != test.code {
				t.Fatalf("%d %s (%v), want %d %s", a.status, a.text, a.err, test.want, test.code)
			}
			test.body.check(t, a)
			if !strings.HasPrefix(a.header.Get("X-Request-ID"), "req_") || a.header.Get("Cache-Control") != "no-store" || a.header.Get("Date") == "" || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("headers: %v", a.header)
			}
		})
	}
}

// Money has one grammar. Nothing else comes in.
func TestMoneyGrammar(t *testing.T) {
	p := start(t, modelgatetest.Options{MinTopUp: "0.000000000001", WalletBalance: "999999999999999"})
	path := "/groups/" + p.group("cus_a:signup:1") + "/top-ups"
	for _, text := range []string{"1e-7", "1E+3", "NaN", "Infinity", "", " 1", "1 ", "+1", "-1", ".5", "5.", "1_000", "00.1", "01", "１２", "\u22125", "1,000", "0x10", "1234567890123456", "1.1234567890123", strings.Repeat("9", 40)} {
		if a := p.call("POST", path, usd(text)); a.status != 400 || a.str("error", "param") != "amount" {
			t.Errorf("%q: %d %s", text, a.status, a.text)
		}
	}
	for _, body := range []string{`{"amount":25.00,"currency":"USD"}`, `{"amount":null,"currency":"USD"}`, `{"currency":"USD"}`, `{"amount":["1"],"currency":"USD"}`} {
		if a := p.call("POST", path, body); a.status != 400 || a.str("error", "param") != "amount" {
			t.Errorf("%s: %d %s", body, a.status, a.text)
		}
	}
	for text, want := range map[string]string{"0.000000000001": "0.000000000001", "100": "100.00", "0.10": "0.10", "99.999999999999": "99.999999999999", "7.1000": "7.10"} {
		if got := p.must(201, "POST", path, usd(text)).str("amount"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	// 207.20 have gone.
	if got := p.u.State().Wallet.Balance; got != "999999999999791.80" {
		t.Errorf("the wallet has %s", got)
	}
}

// What an external_ref is depends on the mode. A deleted group's is free.
func TestExternalRefModes(t *testing.T) {
	body := object{"name": "N", "external_ref": "cus_a:signup:1"}
	p := start(t, modelgatetest.Options{ExternalRefMode: modelgatetest.RefConflict})
	id := p.group("cus_a:signup:1")
	a := p.must(409, "POST", "/groups", body)
	expected{"error.code": "external_ref_conflict", "error.existing_id": id, "error.param": "external_ref"}.check(t, a)
	p.must(200, "DELETE", "/groups/"+id, nil)
	p.must(201, "POST", "/groups", body)

	p = start(t, modelgatetest.Options{ExternalRefMode: modelgatetest.RefReturnExisting})
	id = p.group("cus_a:signup:1")
	expected{"id": id}.check(t, p.must(200, "POST", "/groups", body))
	if s := p.u.State(); len(s.Groups) != 1 || len(s.Audit) != 1 {
		t.Errorf("%d groups, %d audit events", len(s.Groups), len(s.Audit))
	}

	p = start(t, modelgatetest.Options{NoRefFilter: true})
	p.group("cus_a:signup:1")
	expected{"data.0.external_ref": "cus_a:signup:1"}.check(t, p.must(200, "GET", "/groups?external_ref=other", nil))
}

// Usage is blocked from the limit on, exactly, and counts in its period.
func TestUsage(t *testing.T) {
	now := time.Date(2026, 1, 31, 23, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
	group := p.group("cus_a:signup:1")
	key := p.must(201, "POST", "/groups/"+group+"/keys", object{"name": "K"}).str("id")
	use := func(cost string) error {
		_, err := p.u.Use(modelgatetest.Used{KeyID: key, Model: "small", Cost: cost})
		return err
	}
	if err := use("0.01"); err == nil {
		t.Error("a key without a limit can spend")
	}
	p.must(200, "PATCH", "/groups/"+group+"/limits", limit("100.00", "1"))
	p.must(201, "POST", "/groups/"+group+"/top-ups", usd("100.00"))
	for _, cost := range []string{"99.999999999999", "0.000000000001"} {
		if err := use(cost); err != nil {
			t.Error(err)
		}
	}
	if err := use("0.01"); err == nil {
		t.Error("100.00 of 100.00 does not block")
	}
	expected{"usage_in_period": "100.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/limits", nil))
	expected{"balance": "0.00"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
	expected{"data.0.cost": "99.999999999999", "data.0.finalized": "true", "data.0.key_id": key, "data.1.cost": "0.000000000001", "data.0.model": "small", "data.0.currency": "USD"}.
		check(t, p.must(200, "GET", "/requests?key_id="+key, nil))

	p.u.Advance(time.Hour) // February
	open, err := p.u.Use(modelgatetest.Used{KeyID: key, Model: "small", Cost: "1.00", Open: true})
	if err != nil || open.Finalized {
		t.Fatalf("%+v, %v", open, err)
	}
	done, err := p.u.Use(modelgatetest.Used{ID: open.ID, Cost: "0.40"})
	if err != nil || !done.Finalized || done.Cost != "0.400000000000" {
		t.Fatalf("%+v, %v", done, err)
	}
	if _, err := p.u.Use(modelgatetest.Used{ID: open.ID, Cost: "0.40"}); err == nil {
		t.Error("a finalized request changes")
	}
	expected{"usage_in_period": "0.40"}.check(t, p.must(200, "GET", "/groups/"+group+"/limits", nil))
	expected{"balance": "-0.40"}.check(t, p.must(200, "GET", "/groups/"+group+"/balance", nil))
	p.must(200, "PATCH", "/keys/"+key, object{"status": "disabled"})
	if err := use("0.01"); err == nil {
		t.Error("a disabled key can spend")
	}
}

// Each change has one audit event, with the request that made it; what changes
// nothing, fails or is a replay has none.
func TestAudit(t *testing.T) {
	w := newWorld(t, modelgatetest.Options{})
	before := len(w.u.State().Audit)
	w.must(200, "DELETE", "/keys/"+w.revoked, nil)
	w.must(200, "DELETE", "/groups/"+w.deleted, nil)
	w.must(200, "PATCH", "/groups/"+w.frozen, object{"status": "frozen"})
	w.must(409, "POST", "/groups/"+w.frozen+"/keys", object{"name": "K"})
	created := w.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "K"}, "Idempotency-Key", "create-key")
	w.must(201, "POST", "/groups/"+w.group+"/keys", object{"name": "K"}, "Idempotency-Key", "create-key")
	s := w.u.State()
	if len(s.Audit) != before+1 {
		t.Fatalf("%d audit events, want %d", len(s.Audit), before+1)
	}
	e := s.Audit[before]
	if e.Action != "key.create" || e.Target.ID != created.str("id") || e.RequestID != created.header.Get("X-Request-ID") || e.IdempotencyKey != "create-key" {
		t.Errorf("%+v", e)
	}
	if strings.Contains(w.must(200, "GET", "/audit-events", nil).text, created.str("secret")) {
		t.Error("the secret is in the audit")
	}
	var actions []string
	for _, e := range s.Audit {
		actions = append(actions, e.Action)
	}
	want := []string{"credit.top_up", "group.create", "group.delete", "group.update", "key.create", "key.revoke", "limit.update"}
	if slices.Sort(actions); !slices.Equal(slices.Compact(actions), want) {
		t.Errorf("actions: %q", actions)
	}
}

// A deleted group takes its keys with it.
func TestDeletedGroup(t *testing.T) {
	p := start(t, modelgatetest.Options{})
	group := p.group("cus_a:signup:1")
	key := p.must(201, "POST", "/groups/"+group+"/keys", object{"name": "K"}).str("id")
	p.must(200, "DELETE", "/groups/"+group, nil)
	expected{"status": "revoked"}.check(t, p.must(200, "GET", "/keys/"+key, nil))
	if s := p.u.State(); len(s.LiveGroups()) != 0 || len(s.ActiveKeys()) != 0 {
		t.Errorf("%v, %v", s.LiveGroups(), s.ActiveKeys())
	}
}

// The Date is the upstream's clock, and its token is the one that holds now.
func TestClockAndToken(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p := start(t, modelgatetest.Options{Now: func() time.Time { return now }})
	p.u.Advance(36 * time.Hour)
	if got := p.must(200, "GET", "/balance", nil).header.Get("Date"); got != now.Add(36*time.Hour).Format(http.TimeFormat) {
		t.Errorf("Date: %s", got)
	}
	if err := p.u.Configure(func(o *modelgatetest.Options) { o.Token = "mgp_rotated" }); err != nil {
		t.Fatal(err)
	}
	p.must(401, "GET", "/balance", nil)
	p.must(200, "GET", "/balance", nil, "Authorization", "Bearer mgp_rotated")
	if err := p.u.Configure(func(o *modelgatetest.Options) { o.Profile = "square" }); err == nil {
		t.Error("a profile that is none")
	}
	p.u.Fund("-1000000.00")
	if got := p.u.State().Wallet.Balance; got != "0.00" {
		t.Errorf("the wallet has %s", got)
	}
}
