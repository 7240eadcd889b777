package webhook

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
)

// The cost of these must not grow with the history in the file: each walks an
// index whose first rows are the ones it wants, and sorts nothing.
func TestHotQueriesWalkTheirIndex(t *testing.T) {
	db := storetest.New(t)
	for name, c := range map[string]struct {
		query string
		args  int
		want  []string // each is in the plan
	}{
		"claim":                  {claimQuery, 3, []string{"SEARCH d USING INDEX webhook_deliveries_due (sub_seq=?)"}},
		"outbox":                 {unpublishedQuery, 0, []string{"SCAN e USING INDEX outbox_unpublished"}},
		"scan":                   {scanQuery, 0, []string{"webhook_deliveries_due (sub_seq>?)", "webhook_deliveries_due (sub_seq=?)"}},
		"warn":                   {warnQuery, 2, []string{"webhook_subscriptions_failing (failing_since_ms<?)"}},
		"replay":                 {replayQuery, 3, []string{"SEARCH d USING INDEX webhook_deliveries_list (sub_seq=? AND delivery_seq>?)"}},
		"sweep":                  {sweepQuery, 5, []string{"SEARCH webhook_deliveries USING INDEX webhook_deliveries_due (sub_seq=?)"}},
		"time":                   {olderThanQuery, 1, []string{"SEARCH webhook_deliveries USING INTEGER PRIMARY KEY (rowid>?)"}},
		"subscriptions":          {selectSubscription + subscriptionsOf("cus_a"), 4, []string{"SEARCH s USING INDEX webhook_subscriptions_customer (customer_id=? AND sub_seq<?)", "SEARCH r USING PRIMARY KEY (sub_seq=? AND bucket_ms>?)"}},
		"everybody's":            {selectSubscription + subscriptionsOf(""), 4, []string{"SEARCH s USING INTEGER PRIMARY KEY (rowid<?)"}},
		"feed":                   {(&feedWalk{customer: "cus_a"}).query(eventColumns), 4, []string{"MERGE (UNION ALL)", "SEARCH outbox_events USING INDEX outbox_feed (customer_id=? AND seq>? AND seq<?)"}},
		"feed with types":        {(&feedWalk{customer: "cus_a", types: listTypes}).query(eventColumns), 8, []string{"MERGE (UNION ALL)", "SEARCH outbox_events USING INDEX outbox_types (event_type=? AND customer_id=? AND seq>? AND seq<?)"}},
		"everybody's feed":       {(&feedWalk{}).query(eventColumns), 4, []string{"SEARCH outbox_events USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"}},
		"everybody's with types": {(&feedWalk{types: listTypes}).query(eventColumns), 8, []string{"SEARCH outbox_events USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"}},
		"lost":                   {lostQuery, 2, []string{"SEARCH feed_deletions USING COVERING INDEX feed_deletions_customer (customer_id=? AND version>?)"}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := explain(t, db, c.query, c.args)
			for _, want := range c.want {
				if !strings.Contains(plan, want) {
					t.Errorf("the plan has no %q:\n%s", want, plan)
				}
			}
			if strings.Contains(plan, "SCAN webhook_deliveries") || strings.Contains(plan, "SCAN outbox_events") || strings.Contains(plan, "TEMP B-TREE FOR ORDER BY") {
				t.Errorf("the plan reads or sorts everything:\n%s", plan)
			}
		})
	}
}

func explain(t *testing.T, db *store.DB, query string, args int) string {
	t.Helper()
	rows, err := db.Reader(context.Background()).Query("EXPLAIN QUERY PLAN "+query, make([]any, args)...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := store.Collect(rows, func(rows *sql.Rows) (string, error) {
		var id, parent, unused int
		var detail string
		err := rows.Scan(&id, &parent, &unused, &detail)
		return detail, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}
