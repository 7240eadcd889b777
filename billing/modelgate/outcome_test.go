package modelgate

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func errorBody(code string) string {
	return fmt.Sprintf(`{"error":{"code":%q,"message":"words","type":"conflict","request_id":"req_1","retryable":false}}`, code)
}

// Every row of the table of answers, over a real socket.
func TestEveryAnswerHasOneClass(t *testing.T) {
	problem := [2]string{"Content-Type", "application/problem+json"}
	html := [2]string{"Content-Type", "text/html"}
	replayed := [2]string{"Idempotent-Replayed", "true"}
	for _, c := range []struct {
		name   string
		handle http.HandlerFunc
		want   Class
		code   string
	}{
		{"created", answer(201, groupAnswer), Succeeded, ""},
		{"created, replayed", answer(201, groupAnswer, replayed), Succeeded, ""},
		{"another charset", answer(201, groupAnswer, [2]string{"Content-Type", "application/json; charset=utf-8"}), Succeeded, ""},
		{"S28 cut off", answer(201, groupAnswer[:60]), Malformed, CodeMalformed},
		{"S28 garbage after it", answer(201, groupAnswer+"x"), Malformed, CodeMalformed},
		{"a second value after it", answer(201, groupAnswer+groupAnswer), Malformed, CodeMalformed},
		{"no body", answer(201, ""), Malformed, CodeMalformed},
		{"no content", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, Malformed, CodeMalformed},
		{"no id", answer(201, strings.Replace(groupAnswer, `"id":"grp_1",`, "", 1)), Malformed, CodeMalformed},
		{"an id that is a path", answer(201, strings.Replace(groupAnswer, `"grp_1"`, `"../keys"`, 1)), Malformed, CodeMalformed},
		{"a name twice", answer(201, strings.Replace(groupAnswer, `"id":"grp_1"`, `"id":"grp_1","id":"grp_2"`, 1)), Malformed, CodeMalformed},
		{"a name in two spellings", answer(201, strings.Replace(groupAnswer, `"id":"grp_1"`, `"id":"grp_1","ID":"grp_2"`, 1)), Malformed, CodeMalformed},
		{"a name in another spelling", answer(201, strings.Replace(groupAnswer, `"id"`, `"Id"`, 1)), Malformed, CodeMalformed},
		{"null money", answer(201, strings.Replace(groupAnswer, `"0.00"`, `null`, 1)), Malformed, CodeMalformed},
		{"scientific money", answer(201, strings.Replace(groupAnswer, `"0.00"`, `"0E+0"`, 1)), Malformed, CodeMalformed},
		{"not UTF-8", answer(201, strings.Replace(groupAnswer, `"cus_a"`, "\"cus_a\xff\"", 1)), Malformed, CodeMalformed},
		{"another type", answer(201, groupAnswer, html), Malformed, CodeMalformed},
		{"another reference", answer(201, strings.Replace(groupAnswer, "cus_a:signup:1", "cus_b:signup:1", 1)), Malformed, CodeEcho},
		{"another name", answer(201, strings.Replace(groupAnswer, `"name":"cus_a"`, `"name":"cus_b"`, 1)), Malformed, CodeEcho},
		{"compressed", answer(201, groupAnswer, [2]string{"Content-Encoding", "gzip"}), Malformed, "answer_not_identity"},

		{"S29 302", answer(302, "", [2]string{"Location", "/elsewhere"}), Redirected, "http_302"},
		{"S29 307", answer(307, "", [2]string{"Location", "/elsewhere"}), Redirected, "http_307"},
		{"400", answer(400, errorBody("idempotency_key_missing")), Refused, "idempotency_key_missing"},
		{"S23 422", answer(422, errorBody("model_unknown")), Refused, "model_unknown"},
		{"404", answer(404, errorBody("group_not_found")), Refused, "group_not_found"},
		{"409 state", answer(409, errorBody("group_frozen")), Refused, "group_frozen"},
		{"412", answer(412, errorBody("version_mismatch")), Refused, "version_mismatch"},
		{"404 of a proxy", answer(404, "<html>no such host</html>", html), Unknown, "http_404"},
		{"400 of a proxy", answer(400, "<html>", html), Unknown, "http_400"},
		{"401", answer(401, errorBody("unauthorized")), Auth, "unauthorized"},
		{"403 of a proxy", answer(403, "<html>", html), Auth, "http_403"},
		{"402", answer(402, errorBody("insufficient_partner_balance")), Wallet, "insufficient_partner_balance"},
		{"408", answer(408, errorBody("timeout")), Unknown, "timeout"},
		{"425", answer(425, ""), NotBegun, "http_425"},
		{"429", answer(429, errorBody("rate_limited")), NotBegun, "rate_limited"},
		{"500", answer(500, errorBody("internal")), Unknown, "internal"},
		{"500 replayed", answer(500, errorBody("internal"), replayed), Replayed5xx, "internal"},
		{"S15 502 without a request id", answer(502, "<html>Bad Gateway</html>", html, [2]string{"X-Request-Id", ""}), Unknown, "http_502"},
		{"503", answer(503, errorBody("overloaded")), Unknown, "overloaded"},
		{"503 not started", answer(503, errorBody("not_started")), NotBegun, "not_started"},
		{"599", answer(599, ""), Unknown, "http_599"},

		{"S20 in progress", answer(409, errorBody("idempotency_in_progress"), [2]string{"Retry-After", "1"}), NotBegun, "idempotency_in_progress"},
		{"S20 in progress, stripe", answer(409, errorBody("idempotency_key_in_use")), NotBegun, "idempotency_key_in_use"},
		{"S20 in progress, ietf", answer(409, `{"type":"https://example.com/idempotency","title":"A request is outstanding for this Idempotency-Key"}`, problem), NotBegun, "idempotency"},
		{"S20 in progress, bare", answer(409, "", [2]string{"Retry-After", "1"}), NotBegun, "http_409"},
		{"S21 reused", answer(409, errorBody("idempotency_key_reused")), KeyReused, "idempotency_key_reused"},
		{"S21 reused, strict", answer(409, errorBody("idempotency_conflict")), KeyReused, "idempotency_conflict"},
		{"S21 reused, stripe", answer(400, errorBody("idempotency_error")), KeyReused, "idempotency_error"},
		{"S21 reused, stripe's type", answer(400, `{"error":{"type":"idempotency_error","message":"words"}}`), KeyReused, "idempotency_error"},
		{"S21 reused, ietf", answer(422, `{"type":"https://example.com/idempotency","title":"Idempotency-Key is already used"}`, problem), KeyReused, "idempotency"},
		{"S21 reused, ietf with a code", answer(422, errorBody("idempotency_key_reused"), problem), KeyReused, "idempotency_key_reused"},
		{"S22 409 that says nothing", answer(409, ""), Unclear, "http_409"},
		{"S22 409 in HTML", answer(409, "<html>", html), Unclear, "http_409"},
		{"reference taken", answer(409, errorBody("external_ref_conflict")), RefConflict, "external_ref_conflict"},
	} {
		o := send(t, upstream(t, c.handle), group)
		if o.Class != c.want || o.Code != c.code {
			t.Errorf("%s: %s %q (%s), want %s %q", c.name, o.Class, o.Code, o.Message, c.want, c.code)
		}
		if !o.Wrote || o.Status == 0 || len(o.SHA256) != 64 || (o.Class == Succeeded) != (o.Answer.TargetID != "") {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
}

// What every operation's answer has to confirm.
func TestAnswersConfirmWhatWasAsked(t *testing.T) {
	for _, c := range []struct {
		request        Request
		body, from, to string
		target         string
	}{
		{group, groupAnswer, "", "", "grp_1"},
		{group, groupAnswer, `"spend_limit":"0.00"`, `"spend_limit":"0"`, "grp_1"},
		{group, groupAnswer, `"spend_limit":"0.00"`, `"spend_limit":"100.00"`, ""},
		{key, keyAnswer, "", "", "key_1"},
		{key, keyAnswer, `"secret":"mg_ab12_the_secret_itself","secret_available":true`, `"secret":null,"secret_available":false`, "key_1"},
		{key, keyAnswer, `"secret":"mg_ab12_the_secret_itself"`, `"secret":null`, ""},
		{key, keyAnswer, `"default"`, `"other"`, ""},
		{key, keyAnswer, "grp_1", "grp_2", ""},
		{limits(t), limitsAnswer, "", "", "grp_1"},
		{limits(t), limitsAnswer, `"25.00"`, `"25"`, "grp_1"},
		{limits(t), limitsAnswer, `"25.00"`, `"250.0"`, ""}, // S27
		{limits(t), limitsAnswer, `"25.00"`, `25.00`, "grp_1"},
		{limits(t), limitsAnswer, `"USD"`, `"EUR"`, ""},
		{limits(t), limitsAnswer, `"month"`, `"day"`, ""},
		{limits(t), limitsAnswer, `"policy_version":"4"`, `"policy_version":"5"`, ""},
		{limits(t), limitsAnswer, `grp_1`, `grp_2`, ""},
		{topUp(t), topUpAnswer, "", "", "txn_1"},
		{topUp(t), topUpAnswer, `"amount":"25.00"`, `"amount":"250.0"`, ""},    // S27
		{topUp(t), topUpAnswer, `"amount":"25.00"`, `"amount":25.00`, "txn_1"}, // S28
		{topUp(t), topUpAnswer, `"amount":"25.00"`, `"amount":2.5e1`, ""},
		{topUp(t), topUpAnswer, "led_1", "led_2", ""},
		{topUp(t), topUpAnswer, "top_up", "adjustment", ""},
		{topUp(t), topUpAnswer, "posted", "pending", ""},
		{adjustment(t), adjustmentAnswer, "", "", "txn_2"},
		{adjustment(t), adjustmentAnswer, `"-5.00"`, `"-5"`, "txn_2"},
		{adjustment(t), adjustmentAnswer, `"-5.00"`, `"5.00"`, ""},
		{adjustment(t), adjustmentAnswer, `"-5.00"`, `"-50.0"`, ""},
		{adjustment(t), adjustmentAnswer, `"adjustment"`, `"top_up"`, ""},
		{adjustment(t), adjustmentAnswer, "grp_1", "grp_2", ""},
		{adjustment(t), adjustmentAnswer, "USD", "EUR", ""},
		{adjustment(t), adjustmentAnswer, "led_2", "led_1", ""},
		{remove, removedAnswer, "", "", "grp_1"},
		{remove, removedAnswer, "grp_1", "grp_2", ""},
		{remove, removedAnswer, "true", "false", ""},
		{revoke, revokeAnswer, "", "", "key_1"},
		{revoke, revokeAnswer, "key_1", "key_2", ""},
		{revoke, revokeAnswer, "revoked", "active", ""},
		{freeze, frozenAnswer, "", "", "grp_1"},
		{freeze, frozenAnswer, "frozen", "active", ""},
	} {
		body := c.body
		if c.from != "" {
			body = strings.Replace(body, c.from, c.to, 1)
		}
		o := send(t, upstream(t, answer(200, body)), c.request)
		want := Malformed
		if c.target != "" {
			want = Succeeded
		}
		if o.Class != want || o.Answer.TargetID != c.target {
			t.Errorf("%s with %s for %s: %s %q (%s)", c.request.Path, c.to, c.from, o.Class, o.Answer.TargetID, o.Message)
		}
		if number := c.to == `25.00` || strings.HasSuffix(c.to, ":25.00"); number != (o.Code == "contract_violation") {
			t.Errorf("%s with %s: code %q", c.request.Path, c.to, o.Code)
		}
	}
}

// S17 and S18: what Retry-After may say.
func TestS17AndS18RetryAfter(t *testing.T) {
	date := time.Date(2026, 5, 14, 9, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Duration{
		"7": 7 * time.Second, "0": time.Second, "3600": time.Hour, "3601": time.Hour, "999999999": time.Hour, "9999999999": time.Hour,
		"99999999999999999999": 0, "-5": 0, "+5": 0, "1.5": 0, "soon": 0, "": 0, " 7": 0, "7 ": 0, "７": 0, "0x7": 0,
		"Thu, 14 May 2026 09:02:00 GMT":    2 * time.Minute,
		"Thursday, 14-May-26 09:02:00 GMT": 2 * time.Minute,
		"Thu May 14 09:02:00 2026":         2 * time.Minute,
		"Thu, 14 May 2026 09:00:00 GMT":    time.Second,
		"Thu, 14 May 2026 08:59:00 GMT":    0,
		"Fri, 15 May 2026 09:00:00 GMT":    time.Hour,
		"2026-05-14T09:02:00Z":             0,
	} {
		if got := retryAfter(text, date); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := retryAfter("Thu, 14 May 2026 09:02:00 GMT", time.Time{}); got != 0 {
		t.Errorf("without a Date: %s", got)
	}
	// The upstream's clock is years from ours: it alone counts.
	o := send(t, upstream(t, answer(429, "", [2]string{"Date", "Thu, 14 May 2020 09:00:00 GMT"}, [2]string{"Retry-After", "Thu, 14 May 2020 09:00:30 GMT"})), group)
	if o.RetryAfter != 30*time.Second || o.Date.Year() != 2020 || o.Retry == "" {
		t.Errorf("%s after %s", o.RetryAfter, o.Date)
	}
}

func failureWith(text string) string {
	return `{"error":{"code":"x","message":"not delivered: ` + text + `"}}`
}

// S71: nothing that may be stored has a secret.
func TestS71OutcomesHaveNoSecrets(t *testing.T) {
	const secret = "mg_ab12_the_secret_itself"
	for _, body := range []string{keyAnswer[:strings.Index(keyAnswer, secret)+10], keyAnswer + "x", `{"error":{"code":"x","message":"Bearer ` + testKey + `, \"secret\":\"` + secret + `\""}}`,
		testKey, strings.Repeat("x", 2*maxExcerpt) + testKey, `{"Secret" : "` + secret + `"`,
		failureWith(base64.StdEncoding.EncodeToString([]byte(secret))), failureWith(hex.EncodeToString([]byte(secret))), failureWith(strings.ReplaceAll(secret, "_", "%5F"))} {
		for _, status := range []int{201, 400, 409, 500} {
			o := send(t, upstream(t, answer(status, body, [2]string{"X-Request-Id", testKey}, [2]string{"Retry-After", testKey})), key)
			stored := fmt.Sprintf("%+v", []any{o.Code, o.Message, o.Excerpt, o.RequestID})
			for _, other := range []string{base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)), "mg%5F"} {
				if strings.Contains(stored, other) {
					t.Errorf("%d %s: %s", status, body, stored)
				}
			}
			if strings.Contains(stored, testKey) || strings.Contains(stored, secret) || strings.Contains(stored, "mg_ab12_") || len(o.Excerpt) > maxExcerpt {
				t.Errorf("%d %s: %s", status, body, stored)
			}
		}
	}
	o := send(t, upstream(t, answer(201, keyAnswer)), key)
	if o.Excerpt != "" || o.Answer.Key.Secret != secret {
		t.Errorf("excerpt %q, secret %q", o.Excerpt, o.Answer.Key.Secret)
	}
}

// An answer that was kept is judged as when it came.
func TestJudgeAgain(t *testing.T) {
	if o := Judge(key, 201, []byte(keyAnswer)); o.Class != Succeeded || o.Answer.Key.Secret == "" {
		t.Errorf("%s", o.Class)
	}
	if o := Judge(key, 500, []byte("x")); o.Class != Unknown {
		t.Errorf("%s", o.Class)
	}
}
