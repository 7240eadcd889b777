package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// booking is what the tests do once: it adds a customer.
type booking struct {
	CustomerID string `json:"customer_id"`
	Secret     string `json:"secret"`
}

func once(t testing.TB, key, request string) store.Once {
	t.Helper()
	o, err := store.NewOnce("booking cus_a", key, map[string]string{"request": request})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// book adds a customer with this id, unless the call is a repetition.
func book(db *store.DB, o store.Once, id string) (b booking, err error) {
	err = db.Write(context.Background(), func(tx *store.Tx) error {
		b, err = store.DoOnce(tx, o, func() (booking, error) {
			_, created, err := store.CreateCustomer(tx, store.Customer{CustomerID: id, Tier: store.TierFree})
			if err == nil && !created {
				err = errors.New("a second time")
			}
			return booking{id, "whsec_of_" + id}, err
		})
		return err
	})
	return b, err
}

func wantConflict(t *testing.T, err error) {
	t.Helper()
	if store.CodeOf(err) != store.CodeConflict || !strings.Contains(err.Error(), "Idempotency-Key") {
		t.Errorf("got %v, want a conflict", err)
	}
}

func TestOnce(t *testing.T) {
	db := storetest.New(t)
	first, err := book(db, once(t, "k", "a"), "cus_1")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := book(db, once(t, "k", "a"), "cus_1"); err != nil || again != first {
		t.Errorf("again: %+v, %v, want %+v", again, err, first)
	}
	if known, ok, err := store.Recall[booking](t.Context(), db, once(t, "k", "a")); known != first || !ok || err != nil {
		t.Errorf("recalled: %+v, %v, %v", known, ok, err)
	}
	_, err = book(db, once(t, "k", "b"), "cus_2")
	wantConflict(t, err)
	_, _, err = store.Recall[booking](t.Context(), db, once(t, "k", "b"))
	wantConflict(t, err)
	other, err := store.NewOnce("booking cus_b", "k", "x")
	if err != nil {
		t.Fatal(err)
	}
	if b, err := book(db, other, "cus_2"); err != nil || b.CustomerID != "cus_2" {
		t.Errorf("the same key of another scope: %+v, %v", b, err)
	}
	for i := range 2 { // without a key it happens each time
		if b, err := book(db, store.Once{}, "cus_x"+strconv.Itoa(i)); err != nil || b.CustomerID != "cus_x"+strconv.Itoa(i) {
			t.Errorf("without a key: %+v, %v", b, err)
		}
	}
}

// What failed has left nothing: the key is free for the same and for another
// request.
func TestOnceForgetsFailures(t *testing.T) {
	db := storetest.New(t)
	if _, err := book(db, once(t, "k", "a"), "not an id"); store.CodeOf(err) != store.CodeInvalid {
		t.Fatal(err)
	}
	if b, err := book(db, once(t, "k", "b"), "cus_1"); err != nil || b.CustomerID != "cus_1" {
		t.Errorf("%+v, %v", b, err)
	}
}

func TestOnceUnderConcurrency(t *testing.T) {
	db := storetest.New(t)
	var group sync.WaitGroup
	answers := make([]booking, 32)
	for i := range answers {
		group.Go(func() {
			var err error
			if answers[i], err = book(db, once(t, "k", "a"), "cus_"+strconv.Itoa(i)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	all, err := store.ListCustomers(t.Context(), db, "", 100)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d effects, %v, want 1", len(all), err)
	}
	for _, b := range answers {
		if b.CustomerID != all[0].CustomerID {
			t.Errorf("answered %s, the effect is %s", b.CustomerID, all[0].CustomerID)
		}
	}
}

func TestIdempotencyKeyGrammar(t *testing.T) {
	for _, key := range []string{"k", " ", "~", `"8e03978e-40d5-43dd-bc93-6894a57f9324"`, strings.Repeat("k", 255)} {
		if _, err := store.NewOnce("x", key, nil); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	for key, says := range map[string]string{
		"": "required", strings.Repeat("k", 256): "1 to 255 printable ASCII", "a\tb": "printable", "a\x7f": "printable", "鍵": "printable", "a\x00": "printable",
	} {
		if _, err := store.NewOnce("x", key, nil); store.CodeOf(err) != store.CodeInvalid || !strings.HasPrefix(err.Error(), "Idempotency-Key: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", key, err, says)
		}
	}
}

// A key is over after a day, whether or not its row is gone by then.
func TestOnceForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		forget := func(want int64) {
			t.Helper()
			if more, err := store.ForgetKeys(t.Context(), db); more || err != nil {
				t.Errorf("forgetting: %v, %v", more, err)
			}
			var left int64
			if err := db.Reader(t.Context()).QueryRow(`SELECT COUNT(*) FROM idempotency_keys`).Scan(&left); err != nil || left != want {
				t.Errorf("%d keys are left, %v, want %d", left, err, want)
			}
		}
		forget(0)
		for _, key := range []string{"k", "l"} {
			if _, err := book(db, once(t, key, "a"), "cus_"+key); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(24*time.Hour - time.Millisecond)
		if b, err := book(db, once(t, "k", "a"), "cus_2"); err != nil || b.CustomerID != "cus_k" {
			t.Errorf("within the day: %+v, %v", b, err)
		}
		forget(2)
		time.Sleep(time.Millisecond)
		if b, err := book(db, once(t, "k", "b"), "cus_2"); err != nil || b.CustomerID != "cus_2" {
			t.Errorf("after the day: %+v, %v", b, err)
		}
		if b, err := book(db, once(t, "k", "b"), "cus_3"); err != nil || b.CustomerID != "cus_2" {
			t.Errorf("the new day's: %+v, %v", b, err)
		}
		forget(1) // the one that began again is the youngest
	})
}

func TestForgetKeysInSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		const n = 501 // one more than a step
		if err := db.Write(t.Context(), func(tx *store.Tx) error {
			for i := range n {
				if _, err := store.DoOnce(tx, once(t, strconv.Itoa(i), "a"), func() (int, error) { return i, nil }); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		for _, want := range []bool{true, false, false} {
			if more, err := store.ForgetKeys(t.Context(), db); more != want || err != nil {
				t.Errorf("more: %v, %v, want %v", more, err, want)
			}
		}
	})
}

// A secret in an answer is sealed in the file, and is sealed again with the
// others.
func TestOnceKeepsSecrets(t *testing.T) {
	db := storetest.New(t)
	o := once(t, "jpk_put_in_the_wrong_place", "a")
	o.Secret = true
	first, err := book(db, o, "cus_1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{db.Path(), db.Path() + "-wal"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, secret := range []string{first.Secret, "jpk_put_in_the_wrong_place"} {
			if bytes.Contains(text, []byte(secret)) {
				t.Errorf("%s is in %s", secret, name)
			}
		}
	}
	const newKey = "new:202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
	rekeyed := func(keys string) {
		t.Helper()
		if db.Keys, err = store.ParseKeyring(keys, storetest.Salt); err != nil {
			t.Fatal(err)
		}
	}
	rekeyed(newKey + "," + storetest.MasterKeys)
	for _, want := range []int{1, 0} { // the second time finds nothing to do
		if n, err := store.RekeyAnswers(t.Context(), db); n != want || err != nil {
			t.Errorf("sealed %d again, %v, want %d", n, err, want)
		}
	}
	rekeyed(newKey)
	if again, err := book(db, once(t, "jpk_put_in_the_wrong_place", "a"), "cus_1"); err != nil || again != first {
		t.Errorf("under the new key alone: %+v, %v, want %+v", again, err, first)
	}
}
