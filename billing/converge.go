package billing

import (
	"cmp"
	"database/sql"
	"fmt"
	"slices"

	"jpintel/billing/modelgate"
	"jpintel/billing/money"
	"jpintel/store"
)

// Why a paid payment's credit waits. The code of a failed operation is a reason
// too.
const (
	holdNoIntent    = "payment_intent_unknown"
	holdNobody      = "customer_not_named"
	holdStranger    = "customer_unknown"
	holdUnready     = "not_provisioned"
	holdCurrency    = "currency_doubtful"
	holdWrongMoney  = "currency_mismatch"
	holdReversal    = "reversal_currency_mismatch"
	holdTooSmall    = "below_minimum"
	holdFrozenGroup = "group_frozen"
)

// holdReasons are those reasons in words.
var holdReasons = map[string]string{
	holdNoIntent:             "only its checkout session is known: the payment intent's id is missing",
	holdNobody:               "it names no customer: client_reference_id and metadata.customer_id are empty",
	holdStranger:             "there is no customer with the id that it names",
	holdUnready:              "the customer has no group and key yet; it is credited when they are there",
	holdCurrency:             "it is not certain what the amount's minor units are worth",
	holdWrongMoney:           "it was paid in another currency than the customer's wallet has",
	holdReversal:             "a refund or dispute is in another currency than the payment",
	holdTooSmall:             "it is less than the partner API takes for a top-up",
	holdFrozenGroup:          "the customer's group is frozen; it is credited when that ends",
	"customer_contradiction": "events name different customers",
	"amount_contradiction":   "events tell different amounts",
}

func holdWords(reason string) string {
	if words, ok := holdReasons[reason]; ok {
		return reason + ": " + words
	}
	return reason + ": its last operation has ended so; a new one needs a person"
}

// minTopUp is the least that the upstream takes for a top-up, in any currency.
var minTopUp = func() money.Amount {
	least, err := money.Parse("1.00")
	if err != nil {
		panic(err) // unreachable: it is an amount
	}
	return least
}()

// converge begins what brings a customer's credit nearer to what the facts of a
// payment add up to: what was paid, less what was taken back, and not less than
// nothing. One operation of a payment is open at a time; the transaction of its
// end comes here again. It returns the operation that it has begun, or nil.
func converge(tx *store.Tx, p *payment) (began *Operation, err error) {
	if p.PaidAtMS == 0 {
		return nil, nil
	}
	account, hold, err := p.account(tx)
	if err != nil {
		return nil, err
	}
	if account != nil {
		if err := freezeForDisputes(tx, p, account); err != nil {
			return nil, err
		}
	}
	var in *intent
	var done bool
	if hold == "" {
		if in, done, hold, err = p.next(tx, account, false); err != nil {
			return nil, err
		}
	}
	if done {
		if err := p.square(tx, account.Currency); err != nil {
			return nil, err
		}
	}
	if p.hold(hold); in != nil {
		if began, _, err = accept(tx, *in); err != nil {
			return nil, err
		}
	}
	return began, p.save(tx)
}

// heldRows is how many payments go on in one transaction. The end of each of
// their operations has the next ones go on.
const heldRows = 100

// convergeHeld has a customer's payments go on that wait for the customer, and the
// events that told of them be looked at again.
func convergeHeld(tx *store.Tx, customer string) error {
	rows, err := tx.Query(`
		SELECT `+paymentColumns+` FROM payments WHERE customer_id = $1 AND state = 'held' AND hold_reason IN ('`+holdStranger+`', '`+holdUnready+`', '`+holdFrozenGroup+`')
		ORDER BY payment_seq LIMIT $2`, customer, heldRows)
	if err != nil {
		return fmt.Errorf("reading held payments: %w", err)
	}
	held, err := store.Collect(rows, func(r *sql.Rows) (*payment, error) { return scanPayment(r) })
	if err != nil {
		return fmt.Errorf("reading held payments: %w", err)
	}
	for _, p := range held {
		if _, err := converge(tx, p); err != nil {
			return err
		}
	}
	return rerunHeld(tx, customer)
}

// account is the account that a payment is for, once it can be credited; else
// why it cannot.
func (p *payment) account(q store.Querier) (a *Account, hold string, err error) {
	switch {
	case p.Ref == "":
		return nil, holdNoIntent, nil
	case p.CustomerID == "":
		return nil, holdNobody, nil
	}
	if _, err := store.GetCustomer(q, p.CustomerID); store.CodeOf(err) == store.CodeNotFound {
		return nil, holdStranger, nil
	} else if err != nil {
		return nil, "", err
	}
	var ready bool
	err = q.QueryRow(`SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action = $2 AND status = $3)`,
		p.CustomerID, string(ProvisionCustomer), string(Succeeded)).Scan(&ready)
	if err != nil {
		return nil, "", fmt.Errorf("reading a provisioning: %w", err)
	}
	if a, err = getAccount(q, p.CustomerID); err != nil || a == nil || !ready {
		return nil, holdUnready, err
	}
	return a, "", nil
}

// worth is what a payment is worth in its wallet's currency: what was paid, and
// what of it is left. hold says why that is not certain.
func (p *payment) worth(c money.Currency, reversals []reversal) (paid, left money.Amount, hold string) {
	currency, err := money.ParseCurrency(p.Currency)
	if err == nil {
		paid, err = money.FromMinor(p.AmountMinor, currency)
	}
	if err != nil {
		return paid, left, holdCurrency
	}
	if currency != c {
		return paid, left, holdWrongMoney
	}
	minor := p.AmountMinor
	for _, r := range reversals {
		if !r.effective() {
			continue
		}
		if r.Currency != "" && r.Currency != p.Currency {
			return paid, left, holdReversal
		}
		minor -= min(minor, r.AmountMinor) // a dispute of what was refunded takes nothing twice
	}
	if left, err = money.FromMinor(minor, currency); err != nil {
		return paid, left, holdCurrency
	}
	return paid, left, ""
}

// credited is what has been done about a payment so far.
type credited struct {
	have  money.Amount // the sum of what has succeeded
	topUp *Operation   // that has succeeded; nil: none
	last  *Operation   // the newest; nil: none
	open  bool         // it has not ended
	// refusals is how many have ended in a row because the wallet was too small.
	refusals int
}

// maxRefusals is how often the program itself makes another version of what a
// wallet was too small for: each time the upstream has said that it is large
// enough by now.
const maxRefusals = 12

func (p *payment) credited(q store.Querier) (c credited, err error) {
	// OR, or an order, would have all operations of the customer read.
	rows, err := q.Query(`
		SELECT `+operationColumns+` FROM partner_operations WHERE customer_id = $1 AND action = $2 AND intent = $3
		UNION ALL SELECT `+operationColumns+` FROM partner_operations WHERE customer_id = $1 AND action = $4 AND intent = $5`,
		p.CustomerID, string(TopUpCredit), p.EntryID, string(DebitCredit), p.Ref)
	if err != nil {
		return c, fmt.Errorf("reading a payment's operations: %w", err)
	}
	all, err := store.Collect(rows, func(r *sql.Rows) (*Operation, error) { return scanOperation(r) })
	if err != nil {
		return c, fmt.Errorf("reading a payment's operations: %w", err)
	}
	slices.SortFunc(all, func(a, b *Operation) int { return cmp.Compare(a.seq, b.seq) })
	for _, o := range all {
		c.last, c.open = o, o.FinishedAt == nil
		if c.refusals++; o.code() != codeWalletRefusal {
			c.refusals = 0
		}
		if o.Status != Succeeded {
			continue
		}
		if o.Action == TopUpCredit {
			c.topUp = o
		}
		amount, _, err := o.money()
		if err != nil {
			return c, err
		}
		if c.have, err = c.have.Add(amount); err != nil {
			return c, err
		}
	}
	return c, nil
}

// next is what has to be done now about a payment; nil: nothing, because that is
// done, because an operation is open, or because something is missing: hold says
// what. Approved: a person wants again what has failed.
func (p *payment) next(q store.Querier, a *Account, approved bool) (in *intent, done bool, hold string, err error) {
	reversals, err := reversalsOf(q, p.Ref)
	if err != nil {
		return nil, false, "", err
	}
	paid, left, hold := p.worth(a.Currency, reversals)
	if hold != "" {
		return nil, false, hold, nil
	}
	c, err := p.credited(q)
	if err != nil || c.open {
		return nil, false, "", err
	}
	delta, err := left.Sub(c.have)
	if err != nil || delta.Sign() == 0 || delta.Sign() > 0 && p.State == paymentMismatch {
		return nil, err == nil && delta.Sign() == 0, "", err
	}
	if c.last != nil && c.last.Status == FailedFinal && !approved {
		if again, err := p.again(q, c, delta); err != nil || !again {
			return nil, false, c.last.code(), err
		}
	}
	if c.topUp == nil {
		in, hold, err = p.topUp(a, c, paid, left)
	} else {
		in, hold, err = p.adjust(q, a, c.topUp, delta, reversals)
	}
	return in, false, hold, err
}

// again reports whether the program itself may go on after a failed operation.
// It may where something else is to be done now than what has failed, and where
// the upstream's own answer says that nothing was done and what was in the way is
// over. All else waits for a person, or it would fail for ever; and what was only
// not found may have been done.
func (p *payment) again(q store.Querier, c credited, delta money.Amount) (bool, error) {
	failed := c.last
	switch failed.code() {
	case codeWalletRefusal:
		return c.refusals < maxRefusals, nil
	case codeNotExecuted:
		return false, nil
	case holdFrozenGroup:
		return thawedSince(q, failed)
	}
	amount, _, err := failed.money()
	return failed.Action == DebitCredit && !amount.Equal(delta), err
}

// thawedSince reports whether the customer's group was thawed after an operation
// was first sent: from when its refusal is cannot be known, for it may be a stored
// one.
func thawedSince(q store.Querier, o *Operation) (thawed bool, err error) {
	err = q.QueryRow(`SELECT EXISTS (SELECT 1 FROM partner_operations WHERE customer_id = $1 AND action = $2 AND status = $3 AND finished_at_ms >= $4)`,
		o.CustomerID, string(ThawGroup), string(Succeeded), o.FirstSentAt.UnixMilli()).Scan(&thawed)
	if err != nil {
		return false, fmt.Errorf("reading thaws: %w", err)
	}
	return thawed, nil
}

// topUp is a payment's one top-up. Where so much was taken back before it that
// the upstream would not take the rest, all is credited, and then taken back: the
// same as if the refund had come later.
func (p *payment) topUp(a *Account, c credited, paid, left money.Amount) (*intent, string, error) {
	amount, version := left, int64(1)
	if left.Cmp(minTopUp) < 0 {
		amount = paid
	}
	if c.last != nil {
		version = c.last.IntentVersion + 1
	}
	switch {
	case amount.Cmp(minTopUp) < 0:
		return nil, holdTooSmall, nil
	case a.Frozen:
		return nil, holdFrozenGroup, nil
	}
	in := topUpIntent(p, a.GroupID, amount, a.Currency, version)
	return &in, "", nil
}

// adjust is what takes credit back, or gives it again: each time a new
// adjustment, numbered by payment.
func (p *payment) adjust(q store.Querier, a *Account, topUp *Operation, delta money.Amount, reversals []reversal) (*intent, string, error) {
	seq, _, err := versionAfter(q, p.CustomerID, DebitCredit, p.Ref)
	if err != nil {
		return nil, "", err
	}
	reason := modelgate.ReasonCorrection
	if delta.Sign() < 0 {
		reason = reasonOf(reversals)
	}
	in := debitIntent(p, a.GroupID, delta, a.Currency, seq, reason, *topUp.TargetID)
	return &in, "", nil
}

// reasonOf is why credit is taken back: the newest of what counts.
func reasonOf(reversals []reversal) string {
	for _, r := range reversals {
		if r.effective() {
			return r.Kind
		}
	}
	return modelgate.ReasonCorrection // unreachable: something has taken it back
}

// paymentOf is the payment that an operation moves credit for.
func paymentOf(q store.Querier, o *Operation) (*payment, error) {
	condition := `ledger_entry_id = $1`
	if o.Action == DebitCredit {
		condition = byRef
	}
	p, err := findPayment(q, condition, o.Intent)
	if err == nil && p == nil {
		err = fmt.Errorf("operation %s: its payment is not there", o.OperationID) // unreachable: payments with an operation are never deleted
	}
	return p, err
}

// convergeAfter goes on with a payment when an operation of it has ended.
func convergeAfter(tx *store.Tx, o *Operation) error {
	p, err := paymentOf(tx, o)
	if err != nil {
		return err
	}
	_, err = converge(tx, p)
	return err
}
