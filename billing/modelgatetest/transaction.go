package modelgatetest

import (
	"net/http"
	"time"

	"github.com/shopspring/decimal"
)

// The types of transactions.
const (
	txnTopUp      = "top_up"
	txnAdjustment = "adjustment"
)

// transaction moves money between the partner's wallet and a group: into the
// group where the amount is positive.
type transaction struct {
	id, kind, group, ref, memo, reason, related, requestID string
	amount, after                                          decimal.Decimal
	createdAt                                              time.Time
}

// Transaction is the same on the wire.
type Transaction struct {
	ID                   string `json:"id"`
	Type                 string `json:"type"` // top_up or adjustment
	GroupID              string `json:"group_id"`
	Amount               string `json:"amount"`
	Currency             string `json:"currency"`
	BalanceAfter         string `json:"balance_after"` // of the group
	ExternalRef          string `json:"external_ref"`
	Memo                 string `json:"memo,omitempty"`
	Reason               string `json:"reason,omitempty"`
	RelatedTransactionID string `json:"related_transaction_id,omitempty"`
	RequestID            string `json:"request_id"`
	Status               string `json:"status"` // posted
	CreatedAt            string `json:"created_at"`
}

func (t transaction) view(currency string) Transaction {
	return Transaction{
		ID: t.id, Type: t.kind, GroupID: t.group, Amount: printMoney(t.amount, currency), Currency: currency,
		BalanceAfter: printMoney(t.after, currency), ExternalRef: t.ref, Memo: t.memo, Reason: t.reason, RelatedTransactionID: t.related,
		RequestID: t.requestID, Status: "posted", CreatedAt: stamp(t.createdAt),
	}
}

func (t transaction) place() place { return place{t.createdAt, t.id} }

// topUp is POST /groups/{gid}/top-ups.
func topUp(c *call) (execution, error) {
	f := c.fields()
	t := transaction{kind: txnTopUp, amount: f.money("amount", false), ref: f.optional("external_ref", 255), memo: f.optional("memo", 500)}
	currency := f.form("currency", currencyForm, "USD")
	if err := f.done(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.openGroup()
		if err != nil {
			return reply{}, err
		}
		if err := s.checkCurrency(currency); err != nil {
			return reply{}, err
		}
		if t.amount.LessThan(mustMoney(s.options.MinTopUp)) {
			p := problemf(http.StatusUnprocessableEntity, "amount_below_minimum", "a top-up is at least %s", s.options.MinTopUp)
			p.param = "amount"
			return reply{}, p
		}
		return s.post(g, t, "credit.top_up")
	}, nil
}

// adjust is POST /groups/{gid}/adjustments.
func adjust(c *call) (execution, error) {
	f := c.fields()
	t := transaction{
		kind: txnAdjustment, amount: f.money("amount", true), reason: f.choice("reason", "refund", "dispute", "correction"),
		related: f.optional("related_transaction_id", 64), ref: f.optional("external_ref", 255),
	}
	currency := f.form("currency", currencyForm, "USD")
	if t.amount.IsZero() {
		f.fail("amount", "want an amount that is not zero")
	}
	if err := f.done(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		g, err := s.liveGroup() // a frozen one too: it is frozen because of a dispute
		if err != nil {
			return reply{}, err
		}
		if err := s.checkCurrency(currency); err != nil {
			return reply{}, err
		}
		if related, there := s.transactions.get(t.related, s.now); t.related != "" && (!there || related.group != g.id) {
			p := problemf(http.StatusUnprocessableEntity, "transaction_unknown", "the group has no transaction %q", t.related)
			p.param = "related_transaction_id"
			return reply{}, p
		}
		if t.amount.IsNegative() && g.balance.Add(t.amount).IsNegative() {
			p := problemf(http.StatusUnprocessableEntity, "insufficient_group_balance", "the group has %s", printMoney(g.balance, s.options.Currency))
			p.kind = "balance"
			return reply{}, p
		}
		return s.post(g, t, "credit.adjust")
	}, nil
}

// post moves the money. A group's version is not about its balance.
func (s *session) post(g group, t transaction, action string) (reply, error) {
	wallet, _ := s.wallet.get(walletID, s.now)
	if wallet.LessThan(t.amount) {
		return reply{}, problemf(http.StatusPaymentRequired, "insufficient_partner_balance", "the wallet has %s", printMoney(wallet, s.options.Currency))
	}
	s.wallet.put(s.tx, walletID, wallet.Sub(t.amount))
	g.balance = g.balance.Add(t.amount)
	s.groups.put(s.tx, g.id, g)
	t.id, t.group, t.after, t.requestID, t.createdAt = s.id("txn"), g.id, g.balance, s.call.requestID, s.now
	s.transactions.put(s.tx, t.id, t)
	s.changed(action, "transaction", t.id, map[string]string{"group_id": g.id, "amount": printMoney(t.amount, s.options.Currency), "currency": s.options.Currency})
	return created(t.view(s.options.Currency))
}

// listTransactions is GET /transactions. It shows what is older than the lag.
func listTransactions(c *call) (execution, error) {
	q, err := c.query("group_id", "external_ref", "type", "created_from", "created_to")
	if err != nil {
		return nil, err
	}
	from, to, err := q.between("created_from", "created_to")
	if err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		page := paginate(q, s.transactions.all(s.at.Add(-s.options.ListLag)), transaction.place, func(t transaction) bool {
			return q.is("group_id", t.group) && q.is("type", t.kind) && s.hasRef(q, t.ref) && within(t.createdAt, from, to)
		})
		return page.reply(func(t transaction) any { return t.view(s.options.Currency) })
	}, nil
}

// getTransaction is GET /transactions/{id}. It is never late.
func getTransaction(c *call) (execution, error) {
	if err := c.noQuery(); err != nil {
		return nil, err
	}
	return func(s *session) (reply, error) {
		t, there := s.transactions.get(s.call.params.ByName("id"), s.at)
		if !there {
			return reply{}, problemf(http.StatusNotFound, "transaction_not_found", "there is no such transaction")
		}
		return ok(t.view(s.options.Currency))
	}, nil
}
