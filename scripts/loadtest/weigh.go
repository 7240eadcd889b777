package main

import (
	"fmt"

	"jpintel/store"
)

// sizes are the bytes on disk of one row, its part of every index included.
type sizes struct {
	file, event, delivery float64
	entry                 float64 // what an event came in with: a program or an Idempotency-Key
}

// weighFile looks at the file's pages.
func (b *bench) weighFile() (w sizes, err error) {
	err = withFile(b.ctx, b.db(), func(f *file) error { return w.read(f.db.Reader(b.ctx)) })
	return w, err
}

func (w *sizes) read(q store.Querier) error {
	bytes, err := tableBytes(q)
	if err != nil {
		return err
	}
	var events, deliveries, attempts, entries float64
	if err := q.QueryRow(`
		SELECT (SELECT COUNT(*) FROM outbox_events), (SELECT COUNT(*) FROM webhook_deliveries),
		  (SELECT COUNT(*) FROM webhook_attempts), (SELECT COUNT(*) FROM programs) + (SELECT COUNT(*) FROM idempotency_keys)`).Scan(&events, &deliveries, &attempts, &entries); err != nil {
		return fmt.Errorf("counting rows: %w", err)
	}
	for _, size := range bytes {
		w.file += size
	}
	w.event, w.entry = bytes["outbox_events"]/events, (bytes["programs"]+bytes["idempotency_keys"])/entries
	w.delivery = bytes["webhook_deliveries"]/deliveries + bytes["webhook_attempts"]/attempts
	return nil
}

// tableBytes are the bytes of each table's pages and of those of its indexes.
func tableBytes(q store.Querier) (map[string]float64, error) {
	rows, err := q.Query(`
		SELECT s.tbl_name, SUM(d.pgsize) FROM dbstat d JOIN sqlite_schema s ON s.name = d.name
		WHERE d.aggregate = TRUE GROUP BY s.tbl_name`)
	if err != nil {
		return nil, fmt.Errorf("weighing tables: %w", err)
	}
	defer rows.Close()
	bytes := map[string]float64{}
	for rows.Next() {
		var table string
		var size float64
		if err := rows.Scan(&table, &size); err != nil {
			return nil, fmt.Errorf("weighing tables: %w", err)
		}
		bytes[table] = size
	}
	return bytes, rows.Err()
}
