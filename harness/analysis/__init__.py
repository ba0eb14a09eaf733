"""From a campaign's folder to its answer: statistics, comparison, plots, report. Heavy to import; do it late."""
