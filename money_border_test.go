package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// noAmounts are the texts of S65, S66 and S68 that no border takes. A sign is none
// of an amount's that somebody asks for: -0 is refused too.
var noAmounts = []string{
	"1e-7", "1E+3", "NaN", "Infinity", "", " 1", "1 ", "+1", ".5", "5.", "1_000", "00.1", "１２", "−5", "-0", "-0.00", "-5", "1,000.00", "0x10",
	"1e1000000", strings.Repeat("9", 40), "0." + strings.Repeat("1", 13), "1234567890123456",
}

const amountForm = ": want an amount like 12 or 0.10: at most 15 digits before the point and 12 after it, and nothing else"

// S65, S66, S68: an amount that is none is refused wherever one comes in, and the
// answer names the field.
func TestS65S66S68NoBorderTakesWhatIsNoAmount(t *testing.T) {
	s, p := newBillingServer(t)
	event := s.customer("cus_e", "paid")
	borders := map[string]func(text string) (refusal string){
		"sign-up": func(text string) string {
			return s.admin.with("Idempotency-Key", "k").call("POST", "/v1/admin/customers", map[string]any{"customer_id": "cus_a", "signup_version": 1, "spend_limit": text}, 400).body
		},
		"limit": func(text string) string {
			return s.admin.with("Idempotency-Key", "k").call("POST", "/v1/admin/customers/cus_e/limit", map[string]any{"spend_limit": text, "approved_by": "aki"}, 400).body
		},
		"event": func(text string) string {
			if strings.HasPrefix(text, "-") && text != "-" {
				return "amount" // of an adjustment, which may be negative
			}
			body := map[string]any{"type": "credit.adjustment_posted", "customer_id": event.id, "data": map[string]any{"customer_id": event.id, "adjustment_id": "a", "kind": "top_up", "currency": "USD", "amount": text, "balance_after": "1.00", "source_id": "s"}}
			return s.admin.with("Idempotency-Key", "k").call("POST", "/v1/admin/events", body, 400).body
		},
		"flag": func(text string) string {
			var out, words bytes.Buffer
			err := run(t.Context(), []string{"dev-upstream", "--addr", "127.0.0.1:0", "--min-top-up=" + text}, s.getenv, strings.NewReader(""), &out, &words)
			return fmt.Sprint(err)
		},
	}
	names := map[string]string{"sign-up": "spend_limit" + amountForm, "limit": "spend_limit" + amountForm, "event": "amount", "flag": "min_top_up is"}
	for _, text := range noAmounts {
		for border, take := range borders {
			if border == "flag" && text == "" {
				continue // not given: the default
			}
			want := names[border]
			if border == "sign-up" && text == "" {
				want = "spend_limit: required"
			}
			if refusal := take(text); !strings.Contains(refusal, want) {
				t.Errorf("%s of %q: %s", border, text, refusal)
			}
		}
	}
	for _, number := range []string{"25.00", "1e3", "0", "{}", `["1"]`} {
		s.admin.with("Idempotency-Key", "k").refused("POST", "/v1/admin/customers", `{"customer_id":"cus_a","signup_version":1,"spend_limit":`+number+`}`, 400, "spend_limit: want a string")
	}
	big := `{"customer_id":"cus_a","signup_version":1,"spend_limit":"` + strings.Repeat("9", 70_000) + `"}`
	s.admin.with("Idempotency-Key", "k").call("POST", "/v1/admin/customers", big, 413)
	for _, code := range []string{"XYZ", "DEM", "XAU"} {
		s.admin.with("Idempotency-Key", "k").refused("POST", "/v1/admin/customers", `{"customer_id":"cus_a","signup_version":1,"spend_limit":"1.00","currency":"`+code+`"}`, 400,
			"currency: "+code+" is not among the currencies of ISO 4217 in which one pays")
	}
	if n := len(p.State().Idempotency); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// S64: what is an amount goes to the partner API and comes back with all its
// digits.
func TestS64AmountsKeepTheirDigitsThroughTheAPI(t *testing.T) {
	s, _ := newBillingServer(t)
	for i, c := range []struct{ given, want string }{{"0.01", "0.01"}, {"0.1", "0.10"}, {"100", "100.00"}, {"99.999999999999", "99.999999999999"}, {"999999.999999999999", "999999.999999999999"}} {
		body := map[string]any{"customer_id": "cus_a", "signup_version": 1, "spend_limit": c.given}
		path := "/v1/admin/customers"
		if i > 0 {
			path, body = path+"/cus_a/limit", map[string]any{"spend_limit": c.given, "approved_by": "aki"}
		}
		s.admin.with("Idempotency-Key", fmt.Sprint("k", i)).call("POST", path, body, 202)
		billed(t, s, "ready")
		eventually(t, func() bool {
			return strings.Contains(s.admin.call("GET", "/v1/admin/customers/cus_a", nil, 200).body, `"spend_limit":"`+c.want+`"`)
		})
	}
}
