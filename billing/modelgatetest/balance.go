package modelgatetest

import "github.com/shopspring/decimal"

// Balance is a balance on the wire, a group's or the partner's.
type Balance struct {
	Balance  string `json:"balance"`
	Currency string `json:"currency"`
	AsOf     string `json:"as_of"`
}

func (s *session) balanceReply(balance decimal.Decimal) (reply, error) {
	return ok(Balance{printMoney(balance, s.options.Currency), s.options.Currency, stamp(s.at)})
}

// getBalance is GET /groups/{gid}/balance.
func getBalance(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.group()
		if err != nil {
			return reply{}, err
		}
		return s.balanceReply(g.balance)
	}, nil
}

// getWallet is GET /balance.
func getWallet(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		wallet, _ := s.wallet.get(walletID, s.at)
		return s.balanceReply(wallet)
	}, nil
}

// Fund moves the partner's wallet by a signed amount, as the partner's own
// payment to the upstream would. It panics if the amount is no money.
func (u *Upstream) Fund(amount string) {
	moved, isMoney := parseMoney(amount, true)
	if !isMoney {
		panic("modelgatetest: want money like 25.00, not " + amount)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.notify()
	now := u.clock.now()
	wallet, _ := u.data.wallet.get(walletID, now)
	u.data.wallet.put(&tx{now: now}, walletID, wallet.Add(moved))
}
