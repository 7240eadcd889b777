package billing

import (
	"jpintel/billing/ledger"
	"jpintel/billing/money"
	"jpintel/store"
)

// shares is how much of a payment refunds have taken back, and disputes of what
// refunds have left, by the facts.
func (p *payment) shares(c money.Currency, reversals []reversal) (refunded, disputed money.Amount, err error) {
	var refunds, disputes int64
	for _, r := range reversals {
		switch {
		case !r.effective():
		case r.Kind == kindRefund:
			refunds = min(refunds+r.AmountMinor, p.AmountMinor)
		default:
			disputes = min(disputes+r.AmountMinor, p.AmountMinor)
		}
	}
	if refunded, err = money.FromMinor(refunds, c); err == nil {
		disputed, err = money.FromMinor(min(disputes, p.AmountMinor-refunds), c)
	}
	return refunded, disputed, err
}

// against is the other side of an entry that moves a payment's credit: what was
// taken back is on the accounts of refunds and disputes as the facts have it now,
// and the rest is the provider's. So in the end the journal says the same, in
// whatever order the facts came.
func (p *payment) against(q store.Querier, c money.Currency, moved money.Amount) (lines []ledger.Line, err error) {
	reversals, err := reversalsOf(q, p.Ref)
	if err != nil {
		return nil, err
	}
	booked, err := ledger.OfPayment(q, p.PaymentID)
	if err != nil {
		return nil, err
	}
	refunded, disputed, err := p.shares(c, reversals)
	if err != nil { // minor units that are doubtful one by one: the provider's account has all of it
		refunded, disputed = booked[ledger.Refunds], booked[ledger.Disputes]
	}
	rest := moved.Neg()
	for _, share := range []ledger.Line{{Account: ledger.Refunds, Amount: refunded}, {Account: ledger.Disputes, Amount: disputed}} {
		delta, err := share.Amount.Sub(booked[share.Account])
		if err != nil {
			return nil, err
		}
		if rest, err = rest.Sub(delta); err != nil {
			return nil, err
		}
		if delta.Sign() != 0 {
			lines = append(lines, ledger.Line{Account: share.Account, Amount: delta})
		}
	}
	if rest.Sign() != 0 {
		lines = append(lines, ledger.Line{Account: ledger.StripeClearing, Amount: rest})
	}
	return lines, nil
}

// square has the journal tell of what changed without moving credit: a dispute in
// place of a refund of the same amount, or a payment that was taken back before it
// was credited.
func (p *payment) square(tx *store.Tx, c money.Currency) error {
	lines, err := p.against(tx, c, money.Amount{})
	if err != nil || len(lines) == 0 {
		return err
	}
	n, err := ledger.Entries(tx, p.PaymentID)
	if err != nil {
		return err
	}
	_, err = ledger.Post(tx, ledger.Entry{EntryID: ledger.EntryID(providerStripe, p.Ref, "square", number(n)), Kind: ledger.Correction, CustomerID: p.CustomerID,
		PaymentID: p.PaymentID, Currency: c, CorrelationID: p.PaymentID, OccurredAt: tx.Now, Memo: p.Ref, Lines: lines})
	return err
}
