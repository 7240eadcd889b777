package modelgate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"jpintel/billing/money"
)

// GroupTotal is what all posted transactions of a group add up to. Where they are
// more than one question may answer it asks for each half of the time.
func (c *Client) GroupTotal(ctx context.Context, group string) (money.Amount, error) {
	sum := groupSum{group: group}
	found, err := c.Transactions(ctx, TransactionQuery{GroupID: group})
	if tooMany(err) {
		first := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) // nothing is older
		err = c.addBetween(ctx, &sum, first, time.Now().Add(24*time.Hour).Truncate(time.Second))
	} else if err == nil {
		err = sum.add(found.Items)
	}
	return sum.total, err
}

func tooMany(err error) bool {
	e, ok := errors.AsType[*ReadError](err)
	return ok && e.Code == CodeTooMany
}

// addBetween adds the transactions of from <= created_at < to.
func (c *Client) addBetween(ctx context.Context, sum *groupSum, from, to time.Time) error {
	found, err := c.Transactions(ctx, TransactionQuery{GroupID: sum.group, From: from, To: to})
	half := from.Add(to.Sub(from) / 2).Truncate(time.Second)
	if tooMany(err) && half.After(from) {
		if err = c.addBetween(ctx, sum, from, half); err == nil {
			err = c.addBetween(ctx, sum, half, to)
		}
		return err
	}
	if err != nil {
		return err
	}
	return sum.add(only(found.Items, func(t Transaction) bool { return !t.CreatedAt.Before(from) && t.CreatedAt.Before(to) }))
}

// groupSum adds up one group's transactions.
type groupSum struct {
	group    string
	currency money.Currency
	total    money.Amount
}

func (s *groupSum) add(all []Transaction) (err error) {
	for _, t := range all {
		if t.Status != "posted" {
			continue
		}
		if t.GroupID != s.group || s.currency != "" && t.Currency != s.currency {
			return fmt.Errorf("transaction %s is in %s of group %s, which is not what was asked for", t.ID, t.Currency, t.GroupID)
		}
		s.currency = t.Currency
		if s.total, err = s.total.Add(t.Amount); err != nil {
			return fmt.Errorf("transaction %s: %w", t.ID, err)
		}
	}
	return nil
}
