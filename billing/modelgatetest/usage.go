package modelgatetest

import (
	"fmt"
	"time"

	"github.com/shopspring/decimal"
)

// usage is one request to a model.
type usage struct {
	id, group, key, model string
	cost                  decimal.Decimal
	finalized             bool // its cost will not change any more
	createdAt             time.Time
}

// Usage is the same on the wire.
type Usage struct {
	ID        string `json:"id"`
	GroupID   string `json:"group_id"`
	KeyID     string `json:"key_id"`
	Model     string `json:"model"`
	Cost      string `json:"cost"` // with twelve digits after the point
	Currency  string `json:"currency"`
	Finalized bool   `json:"finalized"`
	CreatedAt string `json:"created_at"`
}

func (r usage) view(currency string) Usage {
	return Usage{r.id, r.group, r.key, r.model, r.cost.StringFixed(costDigits), currency, r.finalized, stamp(r.createdAt)}
}

func (r usage) place() place { return place{r.createdAt, r.id} }

// listUsage is GET /requests. It is never late: what may change is not finalized.
func listUsage(c *call) (execution, error) {
	q, err := c.query("group_id", "key_id", "from", "to")
	if err != nil {
		return nil, err
	}
	from, to, err := q.between("from", "to")
	if err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		page := paginate(q, s.usage.all(s.at), usage.place, func(r usage) bool {
			return q.is("group_id", r.group) && q.is("key_id", r.key) && within(r.createdAt, from, to)
		})
		return page.reply(func(r usage) any { return r.view(s.options.Currency) })
	}, nil
}

// Used is a request to a model that a key makes, or the end of one.
type Used struct {
	ID    string `json:"id"` // of a request that is not finalized yet; "": a new one
	KeyID string `json:"key_id"`
	Model string `json:"model"`
	Cost  string `json:"cost"`
	// Open: the cost may still change, by another Used with the id.
	Open bool `json:"open"`
}

// Use makes a request to a model, or finalizes one. It is refused where the key
// or its group is not active, or what was used in the period has reached the
// limit; the last one that is let through may go beyond it. The group's balance
// pays, and may fall below zero.
func (u *Upstream) Use(used Used) (Usage, error) {
	cost, isMoney := parseMoney(used.Cost, false)
	if !isMoney {
		return Usage{}, fmt.Errorf("cost is %q, want money like 0.000412500000", used.Cost)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	s := &session{tx: &tx{now: u.clock.now()}, data: u.data, u: u, options: u.options}
	s.at = s.now
	r, err := s.usageOf(used)
	if err != nil {
		return Usage{}, err
	}
	g, _ := s.groups.get(r.group, s.now) // a key has a group
	g.balance = g.balance.Add(r.cost).Sub(cost)
	s.groups.put(s.tx, g.id, g)
	r.cost, r.finalized = cost, !used.Open
	s.usage.put(s.tx, r.id, r)
	u.notify()
	return r.view(u.options.Currency), nil
}

// usageOf is the request that is meant, as it is before this.
func (s *session) usageOf(used Used) (usage, error) {
	if used.ID != "" {
		r, there := s.usage.get(used.ID, s.now)
		if !there || r.finalized {
			return usage{}, fmt.Errorf("id is %q, want that of a request that is not finalized", used.ID)
		}
		return r, nil
	}
	k, _ := s.keys.get(used.KeyID, s.now)
	g, _ := s.groups.get(k.group, s.now)
	switch {
	case k.status != keyActive:
		return usage{}, fmt.Errorf("key_id is %q, want an active key's", used.KeyID)
	case g.status != groupActive:
		return usage{}, fmt.Errorf("the key's group is %s", g.status)
	case s.usageInPeriod(g).GreaterThanOrEqual(g.limits.spend):
		return usage{}, fmt.Errorf("the key's group has reached its spend_limit of %s", printMoney(g.limits.spend, s.options.Currency))
	}
	return usage{id: s.id("mrq"), group: g.id, key: k.id, model: used.Model, createdAt: s.now}, nil
}
