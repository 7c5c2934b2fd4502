"""The benchmark behind `holdfast bench`: Holdfast beside a raw-SQL loop with the same driver, in the same run."""
