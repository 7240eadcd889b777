package billing

import (
	"context"
	"fmt"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"jpintel/billing/modelgate"
	"jpintel/billing/modelgatetest"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// budgetModel is the rule as it is written, in numbers of any size.
type budgetModel struct {
	limit, spend *big.Rat
	version      int
	told         map[string]bool
	events       []string
}

func (m *budgetModel) reached(spend, limit *big.Rat, percent int64) bool {
	hundred, share := new(big.Rat).SetInt64(100), new(big.Rat).SetInt64(percent)
	return limit.Sign() > 0 && hundred.Mul(hundred, spend).Cmp(share.Mul(share, limit)) >= 0
}

// move changes the spend, or the limit.
func (m *budgetModel) move(spend, limit *big.Rat) {
	if limit != m.limit {
		m.version++
	}
	for _, percent := range []int64{80, 100} {
		key := fmt.Sprint(m.version, " ", percent)
		if !m.reached(m.spend, m.limit, percent) && m.reached(spend, limit, percent) && !m.told[key] {
			m.told[key] = true
			m.events = append(m.events, fmt.Sprintf("%d%% of %s", percent, limit.FloatString(12)))
		}
	}
	m.spend, m.limit = spend, limit
}

// Usage that comes, turns out cheaper or dearer, and limits that change, in any
// order: what is told is what the rule says.
func TestBudgetsAreToldByTheRule(t *testing.T) {
	if race {
		t.Skip("one goroutine's arithmetic")
	}
	scenario(t, modelgatetest.Options{}, testBudgetsByTheRule)
}

func testBudgetsByTheRule(t *testing.T, b *scene) {
	p := newPoller(b.engine, 0)
	run := 0
	inBubble := struct{ rapid.TB }{t} // a deadline there is of another clock
	rapid.Check(inBubble, func(t *rapid.T) {
		run++
		time.Sleep(time.Second) // or shrinking a failure would have all the time there is
		customer := fmt.Sprint("cus_", run)
		b.signUp(customer)
		b.step()
		account, err := getAccount(b.DB.Reader(context.Background()), customer)
		if err != nil {
			t.Fatal(err)
		}
		model := &budgetModel{limit: ratOf(t, "100"), spend: new(big.Rat), version: 1, told: map[string]bool{}}
		costs := map[int]*big.Rat{}
		cost := rapid.OneOf(rapid.StringMatching(`[1-9]?[0-9]\.(9{1,12}|0{1,11}[01])`), rapid.SampledFrom([]string{"0", "10", "20", "79.99", "0.01", "80", "100"}))
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "a limit") == 0 {
				limit := rapid.SampledFrom([]string{"0", "0.01", "50", "99.99", "100", "100.01", "250"}).Draw(t, "limit")
				b.limit(customer, limit)
				b.step()
				model.move(model.spend, ratOf(t, limit))
				continue
			}
			n, text := rapid.IntRange(0, 4).Draw(t, "request"), cost.Draw(t, "cost")
			amount, err := money.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			used := modelgate.Used{ID: fmt.Sprintf("mrq_%d_%d", run, n), Cost: amount, Currency: "USD", CreatedAt: time.Now()}
			if err := p.count(context.Background(), metered{Account: *account}, []modelgate.Used{used}, func(*store.Tx) error { return nil }); err != nil {
				t.Fatal(err)
			}
			costs[n] = ratOf(t, text)
			spend := new(big.Rat)
			for _, c := range costs {
				spend.Add(spend, c)
			}
			model.move(spend, model.limit)
		}
		var got []string
		for _, e := range told(b, func(e webhook.BudgetThresholdCrossed, _ string) [2]string {
			return [2]string{e.CustomerID, fmt.Sprintf("%d%% of %s", e.ThresholdPercent, ratOf(t, e.Limit).FloatString(12))}
		}) {
			if e[0] == customer {
				got = append(got, e[1])
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(model.events) {
			t.Errorf("told %q, want %q", got, model.events)
		}
	})
}

func ratOf(t *rapid.T, text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		t.Fatal(text)
	}
	return r
}
