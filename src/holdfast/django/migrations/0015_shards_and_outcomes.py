from django.db import migrations

from holdfast.django.schema import HoldfastSchema


class Migration(migrations.Migration):
    dependencies = [("holdfast", "0014_dispatches")]
    operations = [HoldfastSchema(15)]
