package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

func createCustomer(db *store.DB, c store.Customer) (stored store.Customer, created bool, err error) {
	err = db.Write(context.Background(), func(tx *store.Tx) error {
		stored, created, err = store.CreateCustomer(tx, c)
		return err
	})
	return stored, created, err
}

func TestCreateCustomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		asked := store.Customer{CustomerID: "acme", Tier: store.TierPaid, Email: "ops@example.com", Beta: true, DailyLimit: 1000}
		stored, created, err := createCustomer(db, asked)
		if err != nil || !created {
			t.Fatalf("created: %v, %v", created, err)
		}
		want := asked
		want.CreatedAt = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		if stored != want {
			t.Errorf("stored %+v, want %+v", stored, want)
		}
		time.Sleep(time.Hour)
		if again, created, err := createCustomer(db, asked); err != nil || created || again != want {
			t.Errorf("the same again: %+v, created: %v, %v", again, created, err)
		}
		for name, change := range map[string]func(*store.Customer){
			"tier":        func(c *store.Customer) { c.Tier = store.TierFree },
			"email":       func(c *store.Customer) { c.Email = "" },
			"beta":        func(c *store.Customer) { c.Beta = false },
			"daily_limit": func(c *store.Customer) { c.DailyLimit = 0 },
		} {
			other := asked
			change(&other)
			if _, created, err := createCustomer(db, other); store.CodeOf(err) != store.CodeConflict || created {
				t.Errorf("with another %s: created: %v, %v, want a conflict", name, created, err)
			}
		}
		if got, err := store.GetCustomer(db.Reader(t.Context()), "acme"); err != nil || got != want {
			t.Errorf("in the end %+v, %v, want %+v", got, err, want)
		}
	})
}

func TestCustomerIsValidated(t *testing.T) {
	db := storetest.New(t)
	for _, test := range []struct {
		name     string
		customer store.Customer
		field    string // "": valid
	}{
		{"plain", store.Customer{CustomerID: "a", Tier: "free"}, ""},
		{"every sign", store.Customer{CustomerID: "aZ09_.:@+-", Tier: "paid"}, ""},
		{"longest id", store.Customer{CustomerID: strings.Repeat("x", 64), Tier: "free"}, ""},
		{"no id", store.Customer{Tier: "free"}, "customer_id"},
		{"long id", store.Customer{CustomerID: strings.Repeat("x", 65), Tier: "free"}, "customer_id"},
		{"space", store.Customer{CustomerID: "a b", Tier: "free"}, "customer_id"},
		{"slash", store.Customer{CustomerID: "a/b", Tier: "free"}, "customer_id"},
		{"line end", store.Customer{CustomerID: "a\n", Tier: "free"}, "customer_id"},
		{"Japanese", store.Customer{CustomerID: "顧客", Tier: "free"}, "customer_id"},
		{"no tier", store.Customer{CustomerID: "b"}, "tier"},
		{"other tier", store.Customer{CustomerID: "b", Tier: "gold"}, "tier"},
		{"upper-case tier", store.Customer{CustomerID: "b", Tier: "Free"}, "tier"},
		{"no address", store.Customer{CustomerID: "b", Tier: "free", Email: "nobody"}, "email"},
		{"address with a name", store.Customer{CustomerID: "b", Tier: "free", Email: "Ops <ops@example.com>"}, "email"},
		{"two addresses", store.Customer{CustomerID: "b", Tier: "free", Email: "a@example.com, b@example.com"}, "email"},
		{"an address that is too long", store.Customer{CustomerID: "b", Tier: "free", Email: strings.Repeat("a", 243) + "@example.com"}, "email"},
		{"a line's end in an address", store.Customer{CustomerID: "b", Tier: "free", Email: "a\u2028b@example.com"}, "email"},
		{"a control character in an address", store.Customer{CustomerID: "b", Tier: "free", Email: "a\u0085b@example.com"}, "email"},
		{"quotes in an address", store.Customer{CustomerID: "b", Tier: "free", Email: "\"a b\"@example.com"}, "email"},
		{"header in an address", store.Customer{CustomerID: "b", Tier: "free", Email: "a@example.com\r\nBcc: b@example.com"}, "email"},
		{"negative limit", store.Customer{CustomerID: "b", Tier: "free", DailyLimit: -1}, "daily_limit"},
	} {
		_, created, err := createCustomer(db, test.customer)
		switch {
		case test.field == "":
			if err != nil || !created {
				t.Errorf("%s: created: %v, %v", test.name, created, err)
			}
		case store.CodeOf(err) != store.CodeInvalid || !strings.HasPrefix(err.Error(), test.field+": "):
			t.Errorf("%s: %v, want code invalid and the name of %s", test.name, err, test.field)
		}
	}
}

func TestGetUnknownCustomer(t *testing.T) {
	db := storetest.New(t)
	if _, err := store.GetCustomer(db.Reader(t.Context()), "nobody"); store.CodeOf(err) != store.CodeNotFound {
		t.Errorf("got %v, want code not_found", err)
	}
}

func TestSetTier(t *testing.T) {
	db := storetest.New(t)
	storetest.Customer(t, db, "acme", store.TierFree)
	storetest.Customer(t, db, "other", store.TierFree)
	for _, test := range []struct {
		id       string
		tier     store.Tier
		changed  bool
		wantCode store.Code
	}{
		{"acme", store.TierFree, false, ""},
		{"acme", store.TierPaid, true, ""},
		{"acme", store.TierPaid, false, ""},
		{"acme", "gold", false, store.CodeInvalid},
		{"nobody", store.TierPaid, false, store.CodeNotFound},
		{"acme", store.TierFree, true, ""},
	} {
		var changed bool
		err := db.Write(t.Context(), func(tx *store.Tx) (err error) {
			changed, err = store.SetTier(tx, test.id, test.tier)
			return err
		})
		if changed != test.changed || store.CodeOf(err) != test.wantCode || test.wantCode == "" && err != nil {
			t.Errorf("%s to %s: changed: %v, %v", test.id, test.tier, changed, err)
		}
		if got, err := store.GetCustomer(db.Reader(t.Context()), "acme"); err != nil || test.wantCode == "" && got.Tier != test.tier {
			t.Errorf("then it is %+v, %v", got, err)
		}
	}
	if got, err := store.GetCustomer(db.Reader(t.Context()), "other"); err != nil || got.Tier != store.TierFree {
		t.Errorf("the other one is %+v, %v", got, err)
	}
}

func TestListCustomers(t *testing.T) {
	db := storetest.New(t)
	if all, err := store.ListCustomers(t.Context(), db, "", 3); err != nil || all == nil || len(all) != 0 {
		t.Errorf("of an empty file: %#v, %v", all, err)
	}
	for i := range 7 {
		storetest.Customer(t, db, fmt.Sprintf("c%d", 6-i), store.TierFree)
	}
	var got []string
	after := ""
	for range 3 {
		all, err := store.ListCustomers(t.Context(), db, after, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range all {
			got = append(got, c.CustomerID)
			after = c.CustomerID
		}
	}
	if want := "c0 c1 c2 c3 c4 c5 c6"; strings.Join(got, " ") != want {
		t.Errorf("listed %v, want %s", got, want)
	}
}

func TestOptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		storetest.Customer(t, db, "acme", store.TierPaid)
		storetest.Customer(t, db, "other", store.TierPaid)
		start := time.Now()
		for i, test := range []struct {
			out  bool
			want time.Duration // since start; negative: not opted out
		}{
			{false, -1},
			{true, 2 * time.Hour},
			{true, 2 * time.Hour}, // the first time counts
			{false, -1},
			{true, 5 * time.Hour},
		} {
			time.Sleep(time.Hour)
			write(t, db, func(tx *store.Tx) error { return store.SetOptOut(tx, "acme", test.out) })
			got, err := store.GetCustomer(db.Reader(t.Context()), "acme")
			if err != nil {
				t.Fatal(err)
			}
			if at := got.OptedOutAt; (at != nil) != (test.want >= 0) || at != nil && !at.Equal(start.Add(test.want)) {
				t.Errorf("step %d, out %v: opted out at %v, want %v after the start", i+1, test.out, at, test.want)
			}
		}
		if got, err := store.GetCustomer(db.Reader(t.Context()), "other"); err != nil || got.OptedOutAt != nil {
			t.Errorf("the other one is %+v, %v", got, err)
		}
		if err := db.Write(t.Context(), func(tx *store.Tx) error { return store.SetOptOut(tx, "nobody", true) }); store.CodeOf(err) != store.CodeNotFound {
			t.Errorf("of nobody: %v, want code not_found", err)
		}
	})
}
