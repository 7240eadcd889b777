package billing

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"jpintel/store"
)

func TestASignUpMakesOneOfEach(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	b.wantStatus("cus_a", Provisioning)
	b.step()
	b.wantStatus("cus_a", Ready)
	parent := b.want("cus_a", ProvisionCustomer, Succeeded)
	if *parent.Phase != PhaseProvisioned || deref(parent.TargetID) != "grp_1" {
		t.Errorf("%+v", parent)
	}
	var got []string
	for _, s := range b.partner.sent {
		got = append(got, s.method+" "+s.path+" "+s.key+" "+s.body)
	}
	want := []string{
		`POST /groups create-group-for-customer:cus_a:1 {"external_ref":"cus_a:signup:1","metadata":{"external_ref":"cus_a:signup:1"},"models":["m1"],"name":"cus_a","period":"month","spend_limit":"0.00"}`,
		`POST /groups/grp_1/keys create-key-for-customer:cus_a:grp_1:default:1 {"external_ref":"cus_a:default:1","name":"cus_a default","purpose":"default"}`,
		`PATCH /groups/grp_1/limits set-spend-limit:cus_a:grp_1:1 {"currency":"USD","period":"month","policy_version":"1","spend_limit":"100.00"}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("sent:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	events := b.strings(`SELECT event_type || ' ' || correlation_id || ' ' || data FROM outbox_events ORDER BY seq`)
	key := b.operation("cus_a", CreateKey)
	if want := []string{
		`key.status_changed ` + key.OperationID + ` {"customer_id":"cus_a","key_id":"key_1","previous_status":"","current_status":"active","version":1}`,
		`customer.provisioned ` + parent.OperationID + ` {"customer_id":"cus_a","group_id":"grp_1","key_id":"key_1","currency":"USD","spend_limit":"100.00"}`,
	}; !slices.Equal(events, want) {
		t.Errorf("events:\n%s", strings.Join(events, "\n"))
	}
	c, err := b.Customer(context.Background(), CustomerRequest{"cus_a"})
	if err != nil || *c.Status != Ready || *c.GroupID != "grp_1" || *c.SpendLimit != "100.00" || *c.Currency != "USD" || len(c.Keys) != 1 || !c.Keys[0].SecretAvailable {
		t.Errorf("%+v (%v)", c, err)
	}
	if notes := b.strings(`SELECT who || ' ' || action FROM operator_notes`); !slices.Equal(notes, []string{"system provisioned"}) {
		t.Errorf("notes: %q", notes)
	}
}

// S41: two clicks at once, and a third when it is done, with keys of their own.
func TestS41ManyClicksAreOneSignUp(t *testing.T) {
	b := newBench(t)
	var all sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		all.Go(func() {
			o, err := b.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "100.0", Key: "click-" + number(int64(i%3))})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = o.OperationID
		})
	}
	all.Wait()
	b.step()
	third := b.signUp("cus_a")
	if slices.Sort(ids); ids[0] != ids[7] || third.OperationID != ids[0] || third.Status != Succeeded {
		t.Errorf("%q, then %s %s", ids, third.OperationID, third.Status)
	}
	if len(b.partner.groups) != 1 || len(b.partner.keys) != 1 || len(b.partner.sent) != 3 {
		t.Errorf("%d groups, %d keys, %d requests", len(b.partner.groups), len(b.partner.keys), len(b.partner.sent))
	}
}

// S42: another version is another intent, and is refused while there is a group
// or may be one.
func TestS42ASecondSignUpIsRefused(t *testing.T) {
	b := newBench(t)
	second := func(key string) error {
		_, err := b.SignUp(context.Background(), SignUp{Customer: store.Customer{CustomerID: "cus_a"}, Version: 2, SpendLimit: "100.00", Key: key})
		return err
	}
	b.signUp("cus_a")
	if err := second("a"); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("while it is under way: %v", err)
	}
	b.step()
	if err := second("b"); store.CodeOf(err) != store.CodeConflict {
		t.Errorf("when it is done: %v", err)
	}
	if n := len(b.partner.groups); n != 1 {
		t.Errorf("%d groups", n)
	}
}

func TestSignUpsThatContradictAreRefused(t *testing.T) {
	b := newBench(t)
	b.signUp("cus_a")
	for name, in := range map[string]SignUp{
		"another limit":     {Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "200.00", Key: "other"},
		"another currency":  {Customer: store.Customer{CustomerID: "cus_a"}, Version: 1, SpendLimit: "100.00", Currency: "EUR", Key: "other"},
		"another tier":      {Customer: store.Customer{CustomerID: "cus_a", Tier: store.TierPaid}, Version: 1, SpendLimit: "100.00", Key: "other"},
		"the key elsewhere": {Customer: store.Customer{CustomerID: "cus_b"}, Version: 1, SpendLimit: "100.00", Key: "click-cus_a"},
	} {
		if _, err := b.SignUp(context.Background(), in); store.CodeOf(err) != store.CodeConflict {
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
		if _, err := b.SignUp(context.Background(), in); store.CodeOf(err) != store.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A customer that is there already keeps what it has.
func TestSignUpOfACustomerThatIsThere(t *testing.T) {
	b := newBench(t)
	storeCustomer(b, store.Customer{CustomerID: "cus_a", Tier: store.TierPaid, Email: "a@example.jp"})
	b.signUp("cus_a")
	c, err := store.GetCustomer(b.DB.Reader(context.Background()), "cus_a")
	if err != nil || c.Tier != store.TierPaid || c.Email == "" {
		t.Errorf("%+v (%v)", c, err)
	}
}

func storeCustomer(b *bench, c store.Customer) {
	b.t.Helper()
	if err := b.DB.Write(context.Background(), func(tx *store.Tx) error {
		_, _, err := store.CreateCustomer(tx, c)
		return err
	}); err != nil {
		b.t.Fatal(err)
	}
}
