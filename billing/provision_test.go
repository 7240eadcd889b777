package billing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

func TestASignUpMakesOneOfEach(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		s.signUp("cus_a")
		s.wantStatus("cus_a", Provisioning)
		if s.step(); s.up.State().Requests != 3 {
			t.Errorf("%d requests", s.up.State().Requests)
		}
		s.ready("cus_a", "100.00")
		parent := s.want("cus_a", ProvisionCustomer, Succeeded)
		group := s.group("cus_a")
		if *parent.Phase != PhaseProvisioned || deref(parent.TargetID) != group {
			t.Errorf("%+v", parent)
		}
		got := strings.Join(s.strings(`SELECT request_method || ' ' || request_path || ' ' || idempotency_key || ' ' || CAST(request_body AS TEXT) FROM partner_operations
			WHERE request_method IS NOT NULL ORDER BY operation_seq`), "\n")
		want := strings.ReplaceAll(`POST /groups create-group-for-customer:cus_a:1 {"external_ref":"cus_a:signup:1","metadata":{"external_ref":"cus_a:signup:1"},"models":["m1"],"name":"cus_a","period":"month","spend_limit":"0.00"}
POST /groups/GROUP/keys create-key-for-customer:cus_a:GROUP:default:1 {"external_ref":"cus_a:default:1","name":"cus_a default","purpose":"default"}
PATCH /groups/GROUP/limits set-spend-limit:cus_a:GROUP:1 {"currency":"USD","period":"month","policy_version":"1","spend_limit":"100.00"}`, "GROUP", group)
		if got != want {
			t.Errorf("sent:\n%s\nwant:\n%s", got, want)
		}
		events := s.strings(`SELECT event_type || ' ' || correlation_id || ' ' || data FROM outbox_events ORDER BY seq`)
		key := s.operation("cus_a", CreateKey)
		if want := []string{
			fmt.Sprintf(`key.status_changed %s {"customer_id":"cus_a","key_id":"%s","previous_status":"","current_status":"active","version":1}`, key.OperationID, *key.TargetID),
			fmt.Sprintf(`customer.provisioned %s {"customer_id":"cus_a","group_id":"%s","key_id":"%s","currency":"USD","spend_limit":"100.00"}`, parent.OperationID, group, *key.TargetID),
		}; !slices.Equal(events, want) {
			t.Errorf("events:\n%s", strings.Join(events, "\n"))
		}
		c, err := s.Customer(context.Background(), CustomerRequest{"cus_a"})
		if err != nil || *c.Status != Ready || *c.GroupID != group || *c.SpendLimit != "100.00" || *c.Currency != "USD" || len(c.Keys) != 1 || !c.Keys[0].SecretAvailable {
			t.Errorf("%+v (%v)", c, err)
		}
		if notes := s.strings(`SELECT who || ' ' || action FROM operator_notes`); !slices.Equal(notes, []string{"system provisioned"}) {
			t.Errorf("notes: %q", notes)
		}
	})
}

// S41: clicks at once, with keys of their own and with the same, and one more
// when it is done.
func TestS41ClicksAtOnce(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		stop := s.run(WorkerOptions{})
		var all sync.WaitGroup
		ids := make([]string, 8)
		for i := range ids {
			all.Go(func() {
				o, err := s.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "100.0", Key: "click-" + number(int64(i%3))})
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = o.OperationID
			})
		}
		all.Wait()
		time.Sleep(10 * time.Second) // the bubble's
		stop()
		last := s.signUp("cus_a")
		s.made("cus_a", "100.00")
		if slices.Sort(ids); ids[0] != ids[7] || last.OperationID != ids[0] || last.Status != Succeeded || s.up.State().Requests != 3 {
			t.Errorf("%q, then %s %s, %d requests", ids, last.OperationID, last.Status, s.up.State().Requests)
		}
	})
}

// S42: another version is another intent, and is refused while there is a group
// or may be one.
func TestS42ASecondSignUpIsRefused(t *testing.T) {
	scenario(t, modelgatetest.Options{}, func(t *testing.T, s *scene) {
		second := func(key string) error {
			_, err := s.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 2, SpendLimit: "100.00", Key: key})
			return err
		}
		s.rules(fault("POST", groupsPath, modelgatetest.AtAfterCommit, "reset", 1))
		s.signUp("cus_a")
		if err := second("a"); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("while it is under way: %v", err)
		}
		s.stepOnce() // the first one, again: its answer was lost
		if err := second("b"); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("while nobody knows: %v", err)
		}
		s.ready("cus_a", "100.00")
		if err := second("c"); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("when it is done: %v", err)
		}
	})
}

func TestSignUpsThatContradictAreRefused(t *testing.T) {
	s := stillScene(t)
	s.signUp("cus_a")
	for name, in := range map[string]SignUp{
		"another limit":     {Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "200.00", Key: "other"},
		"another currency":  {Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "100.00", Currency: "EUR", Key: "other"},
		"another tier":      {Customer: store.Customer{CustomerID: "cus_a", Tier: store.TierPaid}, Version: 1, SpendLimit: "100.00", Key: "other"},
		"the key elsewhere": {Customer: store.Customer{CustomerID: "cus_b"}, Version: 1, SpendLimit: "100.00", Key: "click-cus_a"},
	} {
		if _, err := s.SignUp(context.Background(), in); store.CodeOf(err) != store.CodeConflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, in := range map[string]SignUp{
		"no key":     {Customer: store.Customer{CustomerID: "cus_c"}, Version: 1, SpendLimit: "1"},
		"no version": {Customer: store.Customer{CustomerID: "cus_c"}, SpendLimit: "1", Key: "k"},
		"a float":    {Customer: store.Customer{CustomerID: "cus_c"}, Version: 1, SpendLimit: "1e3", Key: "k"},
		"a sign":     {Customer: store.Customer{CustomerID: "cus_c"}, Version: 1, SpendLimit: "-1", Key: "k"},
		"a currency": {Customer: store.Customer{CustomerID: "cus_c"}, Version: 1, SpendLimit: "1", Currency: "usd", Key: "k"},
		"an id":      {Customer: store.Customer{CustomerID: "a b"}, Version: 1, SpendLimit: "1", Key: "k"},
	} {
		if _, err := s.SignUp(context.Background(), in); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A customer that is there already keeps what it has.
func TestSignUpOfACustomerThatIsThere(t *testing.T) {
	s := stillScene(t)
	storeCustomer(s, store.Customer{CustomerID: "cus_a", Tier: store.TierPaid, Email: "a@example.jp"})
	s.signUp("cus_a")
	c, err := store.GetCustomer(s.DB.Reader(context.Background()), "cus_a")
	if err != nil || c.Tier != store.TierPaid || c.Email == "" {
		t.Errorf("%+v (%v)", c, err)
	}
}

func storeCustomer(s *scene, c store.Customer) {
	s.t.Helper()
	if err := s.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, _, err := store.CreateCustomer(tx, c)
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
}
