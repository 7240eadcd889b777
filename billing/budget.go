package billing

import (
	"context"
	"time"

	"jpintel/billing/metering"
	"jpintel/billing/money"
	"jpintel/store"
	"jpintel/webhook"
)

// budgetPercents are the shares of the limit that customers are told of.
var budgetPercents = []int{80, 100}

// spent tells of the thresholds that usage has crossed, in the transaction that
// stores the meter. A month that is over is told of for as long as its last day
// may still be open, and no longer.
func (r rules) spent(ctx context.Context, tx *store.Tx, customer string, c metering.Change, grace time.Duration) error {
	_, end, err := metering.MonthBounds(c.Period, tx.Local().Location())
	if err != nil || !tx.Now.Before(end.Add(grace)) {
		return err
	}
	p, err := policyInForce(tx, customer, "")
	if err != nil || p == nil {
		return err
	}
	return r.cross(ctx, tx, customer, c, p.Limit, p, c.RecordID)
}

// limitChanged tells of the thresholds of a limit that has come into force which
// what was spent this month has reached, and had not reached before.
func (r rules) limitChanged(ctx context.Context, tx *store.Tx, o *Operation) error {
	p, err := policyInForce(tx, o.CustomerID, "")
	if err != nil || p == nil || p.Version != o.IntentVersion { // a newer one is in force
		return err
	}
	var before money.Amount // none
	earlier, err := policyInForce(tx, o.CustomerID, o.OperationID)
	if err != nil {
		return err
	}
	if earlier != nil {
		before = earlier.Limit
	}
	month := metering.Month(tx.Now, tx.Local().Location())
	spend, err := metering.Value(tx, o.CustomerID, metering.Spend, month)
	if err != nil {
		return err
	}
	return r.cross(ctx, tx, o.CustomerID, metering.Change{Period: month, Before: spend, After: spend}, before, p, o.OperationID)
}

// cross publishes each threshold of the limit in force that a change crosses.
func (r rules) cross(ctx context.Context, tx *store.Tx, customer string, c metering.Change, limitBefore money.Amount, p *policy, cause string) error {
	for _, percent := range budgetPercents {
		if !metering.Crossed(c.Before, limitBefore, c.After, p.Limit, percent) {
			continue
		}
		err := r.outbox.PublishCrossing(ctx, tx,
			webhook.Crossing{CustomerID: customer, Meter: metering.Spend, Period: c.Period, LimitVersion: p.Version, Percent: percent},
			webhook.BudgetThresholdCrossed{CustomerID: customer, Period: c.Period, Currency: string(p.Currency), ThresholdPercent: percent,
				Spend: c.After.Text(p.Currency), Limit: p.Limit.Text(p.Currency)}, cause)
		if err != nil {
			return err
		}
	}
	return nil
}

// BudgetRequest asks for the caller's budget.
type BudgetRequest struct {
	CustomerID string `bind:"customer" json:"-"`
}

// Budget is a customer's month: its limit, and what of it is spent.
type Budget struct {
	CustomerID   string      `json:"customer_id"`
	Period       string      `json:"period"` // YYYY-MM in the service's time zone
	PeriodStart  time.Time   `json:"period_start"`
	PeriodEnd    time.Time   `json:"period_end"` // exclusive
	Currency     string      `json:"currency"`
	Limit        *string     `json:"limit"` // the one in force; null: none yet
	LimitVersion *int64      `json:"limit_version"`
	Spend        string      `json:"spend"`     // with what is not final yet
	Remaining    *string     `json:"remaining"` // never below zero; null: no limit
	Reached      bool        `json:"reached"`   // spend is the limit, or more
	Thresholds   []Threshold `json:"thresholds"`
	AsOf         *time.Time  `json:"as_of"` // spend counts what was used until then; null: nothing was read yet
}

// Threshold is one that was crossed in the period, and told of.
type Threshold struct {
	Percent      int       `json:"percent"`
	LimitVersion int64     `json:"limit_version"`
	CrossedAt    time.Time `json:"crossed_at"`
}

// Budget reads a customer's budget of this month.
func (s *Service) Budget(ctx context.Context, r BudgetRequest) (b Budget, err error) {
	err = s.DB.View(ctx, func(q store.Querier) error {
		b, err = readBudget(q, r.CustomerID, time.Now(), s.DB.Location)
		return err
	})
	return b, err
}

func readBudget(q store.Querier, customer string, now time.Time, zone *time.Location) (b Budget, err error) {
	a, err := getAccount(q, customer)
	if err != nil {
		return b, err
	}
	if a == nil {
		return b, store.Errorf(store.CodeNotFound, "there is no budget: models are not part of this account")
	}
	month := metering.Month(now, zone)
	b = Budget{CustomerID: customer, Period: month, Currency: string(a.Currency), Thresholds: []Threshold{}}
	if b.PeriodStart, b.PeriodEnd, err = metering.MonthBounds(month, zone); err != nil {
		return b, err
	}
	spend, err := metering.Value(q, customer, metering.Spend, month)
	if err != nil {
		return b, err
	}
	b.Spend = spend.Text(a.Currency)
	if err := b.setLimit(q, spend); err != nil {
		return b, err
	}
	told, err := webhook.ToldCrossings(q, customer, metering.Spend, month)
	for _, t := range told {
		b.Thresholds = append(b.Thresholds, Threshold{t.Percent, t.LimitVersion, t.At.In(zone)})
	}
	if err != nil {
		return b, err
	}
	head, err := metering.GetPass(q, customer, metering.Head)
	if head != nil {
		b.AsOf = new(head.At.In(zone))
	}
	return b, err
}

// setLimit holds what was spent against the limit in force: exactly, and what is
// equal has reached it.
func (b *Budget) setLimit(q store.Querier, spend money.Amount) error {
	p, err := policyInForce(q, b.CustomerID, "")
	if err != nil || p == nil {
		return err
	}
	left, err := p.Limit.Sub(spend)
	if err != nil {
		return err
	}
	if b.Reached = left.Sign() <= 0; b.Reached {
		left = money.Amount{}
	}
	b.Limit, b.LimitVersion, b.Remaining = new(p.Limit.Text(p.Currency)), &p.Version, new(left.Text(p.Currency))
	return nil
}
