package modelgatetest

import (
	"iter"
	"time"

	"github.com/shopspring/decimal"
)

// tx is a change that is being made. What it has put is taken back by rollback,
// until the mutex is given free.
type tx struct {
	now  time.Time
	undo []func()
}

func (t *tx) rollback() {
	for i := len(t.undo) - 1; i >= 0; i-- {
		t.undo[i]()
	}
	t.undo = nil
}

// version is a row as it was from a time on.
type version[T any] struct {
	at  time.Time
	row T
}

// table holds rows in the order in which they were made, with all that they have
// ever been: what a list shows late, or a stale read shows, is the past. Rows are
// values; whoever changes one puts a new one.
type table[T any] struct {
	order    []string
	versions map[string][]version[T]
}

func newTable[T any]() *table[T] { return &table[T]{versions: map[string][]version[T]{}} }

// put writes a row, new or not.
func (t *table[T]) put(x *tx, id string, row T) {
	if len(t.versions[id]) == 0 {
		t.order = append(t.order, id)
	}
	t.versions[id] = append(t.versions[id], version[T]{x.now, row})
	x.undo = append(x.undo, func() {
		t.versions[id] = t.versions[id][:len(t.versions[id])-1]
		if len(t.versions[id]) == 0 {
			delete(t.versions, id)
			t.order = t.order[:len(t.order)-1]
		}
	})
}

// get reads a row as it was at a time.
func (t *table[T]) get(id string, at time.Time) (row T, ok bool) {
	versions := t.versions[id]
	for i := len(versions) - 1; i >= 0; i-- {
		if !versions[i].at.After(at) {
			return versions[i].row, true
		}
	}
	return row, false
}

// all reads the rows as they were at a time, in order.
func (t *table[T]) all(at time.Time) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, id := range t.order {
			if row, ok := t.get(id, at); ok && !yield(row) {
				return
			}
		}
	}
}

// walletID is the one row of the wallet.
const walletID = "wallet"

// data is what the upstream has stored.
type data struct {
	groups       *table[group]
	keys         *table[key]
	transactions *table[transaction]
	usage        *table[usage]
	audit        *table[auditEvent]
	wallet       *table[decimal.Decimal]
}

func newData() data {
	return data{
		groups: newTable[group](), keys: newTable[key](), transactions: newTable[transaction](),
		usage: newTable[usage](), audit: newTable[auditEvent](), wallet: newTable[decimal.Decimal](),
	}
}
